"""Page of a rollout, generated from the ledger (ROLL-1, ROLL-2)."""

import re
import shutil
from collections.abc import Iterator
from datetime import datetime, timedelta
from html import unescape
from pathlib import Path

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import ContractError
from sluice.base.home import Home
from sluice.evaluation.suites.library import SuiteLibrary
from sluice.registry.rollouts import RolloutLedger
from sluice.reports.page import first_tag
from sluice.rollout import transitions
from sluice.rollout.observations import ArmCounts
from sluice.rollout.prediction_agreement import PredictionAgreement
from sluice.rollout.settings import RolloutSettings
from sluice.rollout_control.controller import reconcile
from sluice.rollout_control.failures import save_failures_suite
from sluice.rollout_control.quality import evaluate_live_quality
from sluice.rollout_control.report import save_rollout_page
from sluice.rollout_control.timeline import TimelineMark, timeline_svg
from tests.sluice.registry.ledger_samples import MODEL, NOW
from tests.sluice.rollout_control.controller_samples import (
    FAULTY,
    FIRST_UNSEEN_ROW,
    PIPELINE,
    WORKLOAD,
    begin_rollout,
    echo_frame,
    make_paired_samples,
    make_sample,
    read_rollout,
    report,
)

SETTINGS = RolloutSettings(min_step_s=300, min_requests=100, quality_rows=60, max_step_s=1200)


class ManualClock:
    """Clock that the test sets."""

    def __init__(self) -> None:
        self.now = NOW + timedelta(minutes=1)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ledger(url: str, template: Path, tmp_path: Path, clock: ManualClock) -> Iterator[RolloutLedger]:
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    with RolloutLedger.open(url, clock=clock) as opened:
        yield opened


def advance_time(
    ledger: RolloutLedger, clock: ManualClock, seconds: int, counts: ArmCounts | None = None
) -> None:
    """Advance the clock in steps of 150 s; report ``counts`` and reconcile at each step."""
    for _ in range(seconds // 150):
        clock.now += timedelta(seconds=150)
        if counts is not None:
            report(ledger, at=clock.now, challenger=counts)
        reconcile(ledger, MODEL, now=clock.now)


def run_promoted_rollout(ledger: RolloutLedger, store: ArtifactStore, clock: ManualClock) -> None:
    rollout = begin_rollout(
        ledger, SETTINGS, PredictionAgreement(difference=1.2, spread=0.9, rows=700)
    )
    samples = make_paired_samples(
        rollout, range(FIRST_UNSEEN_ROW, FIRST_UNSEEN_ROW + 300), challenger_error=0.7
    )
    report(ledger, at=clock.now, samples=samples)
    evaluate_live_quality(
        ledger, MODEL, WORKLOAD, PIPELINE.gate, store, echo_frame(FIRST_UNSEEN_ROW + 80), clock.now
    )
    advance_time(ledger, clock, 1200, ArmCounts(requests=210, errors=1))
    evaluate_live_quality(ledger, MODEL, WORKLOAD, PIPELINE.gate, store, echo_frame(), clock.now)
    advance_time(ledger, clock, 300, ArmCounts(requests=200, errors=1))
    ledger.finish_rollout(MODEL, actor="rollout_job", store=store)


def run_rolled_back_rollout(ledger: RolloutLedger, clock: ManualClock) -> None:
    rollout = begin_rollout(ledger, SETTINGS)
    advance_time(ledger, clock, 300, ArmCounts(requests=210, errors=1))
    failed = [make_sample(rollout, key=str(500 + n), fault="errors") for n in range(30)]
    clock.now += timedelta(seconds=60)
    report(ledger, at=clock.now, challenger=FAULTY, samples=failed)
    reconcile(ledger, MODEL, now=clock.now)


def run_paused_rollout(ledger: RolloutLedger, clock: ManualClock) -> None:
    begin_rollout(ledger, SETTINGS)
    advance_time(ledger, clock, 300, ArmCounts(requests=210, errors=1))
    now = read_rollout(ledger)
    clock.now += timedelta(seconds=20)
    pause = transitions.pause(
        now, now=clock.now, actor="ada <ops>", reason="The market opens & nobody is here."
    )
    ledger.record_transition(now, pause)
    advance_time(ledger, clock, 600)
    resumed = transitions.resume(
        read_rollout(ledger), now=clock.now, actor="ada <ops>", reason="It has opened."
    )
    ledger.record_transition(read_rollout(ledger), resumed)
    advance_time(ledger, clock, 1350)


def save_page(
    ledger: RolloutLedger, tmp_path: Path, clock: ManualClock, store: ArtifactStore
) -> str:
    home = Home.from_environment({"SLUICE_HOME": str(tmp_path)}, cwd=tmp_path)
    rollout = read_rollout(ledger)
    failed = save_failures_suite(
        ledger,
        rollout.id,
        WORKLOAD,
        echo_frame(),
        SuiteLibrary(home.root / "suites" / MODEL, store),
        clock.now,
    )
    saved = save_rollout_page(
        ledger,
        rollout.id,
        failed_rows=failed if rollout.is_over else None,
        home=home,
        environ={},
        now=clock.now,
    )
    assert saved.path.parent == home.reports / "rollouts" / MODEL
    return saved.path.read_text()


def extract_text(page: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page.partition("<main>")[2])).split())


def test_page_of_a_promoted_rollout(
    ledger: RolloutLedger, store: ArtifactStore, clock: ManualClock, tmp_path: Path
) -> None:
    run_promoted_rollout(ledger, store, clock)
    page = save_page(ledger, tmp_path, clock, store)

    assert first_tag(page) == ("promoted", "good")
    text = extract_text(page)
    for expected in (
        "The challenger was promoted after 25 min: every step passed.",
        "ada started the rollout of version 2 to replace version 1, strategy canary "
        "(5 %, 25 %, 50 %, 100 %). Reason: The gate said PROMOTE.",
        "4 of 4 steps passed.",
        "On 700 held-out rows the predictions differ by 1.2 on average",
        "PROMOTE 300",
        "All decisions together spend alpha = 0.05",
    ):
        assert expected in text
    assert page.count("<circle") == 6  # start, four steps, promoted
    assert "breach" not in text


def test_page_of_a_rolled_back_rollout(
    ledger: RolloutLedger, store: ArtifactStore, clock: ManualClock, tmp_path: Path
) -> None:
    run_rolled_back_rollout(ledger, clock)
    page = save_page(ledger, tmp_path, clock, store)

    assert first_tag(page) == ("rolled back", "bad")
    text = extract_text(page)
    for expected in (
        "The challenger was rolled back after 6 min at 25 % of the users, by rollout. The "
        "challenger is worse than production: 90 errors in 200 requests of the challenger",
        "errors breach",
        "contains 30 rows on which the challenger failed.",
        "of suite 'rollout-",
        "2: 25 % challenger 50 % 200 90 (45 %)",
    ):
        assert expected in text


def test_page_of_a_paused_rollout_escapes_names(
    ledger: RolloutLedger, store: ArtifactStore, clock: ManualClock, tmp_path: Path
) -> None:
    run_paused_rollout(ledger, clock)
    page = save_page(ledger, tmp_path, clock, store)

    assert first_tag(page) == ("paused", "unsure")
    text = extract_text(page)
    for expected in (
        "The rollout is paused at 25 % of the users. The step is inconclusive after 1200 s",
        "and the rollout paused 2 times",
        "ada <ops> The market opens & nobody is here.",
        "No verdict yet: the first verdict requires labels of 60 requests that both arms answered.",
    ):
        assert expected in text
    assert "ada &lt;ops&gt;" in page
    assert "<ops>" not in page


def test_timeline_plots_the_share_until_the_given_time() -> None:
    marks = [
        TimelineMark(time=NOW, share=0.0, tone="plain", tooltip="start"),
        TimelineMark(time=NOW + timedelta(seconds=50), share=0.5, tone="good", tooltip="on & on"),
    ]
    svg = timeline_svg(marks, until=NOW + timedelta(seconds=100))

    line = re.search(r'polyline class="share" points="([^"]+)"', svg)
    assert line is not None
    points = [tuple(map(float, point.split(","))) for point in line[1].split()]
    assert [x for x, _ in points] == [52, 517, 517, 982]  # left edge, middle, right edge
    (bottom, _, half, _) = (y for _, y in points)
    assert (bottom, half) == (227, 140)  # share 0 at 53 + 174, share 0.5 in the middle
    assert "on &amp; on" in svg


def test_unknown_rollout_is_rejected(ledger: RolloutLedger, tmp_path: Path) -> None:
    home = Home.from_environment({"SLUICE_HOME": str(tmp_path)}, cwd=tmp_path)
    with pytest.raises(ContractError, match="rollout 'nope' does not exist"):
        save_rollout_page(ledger, "nope", failed_rows=None, home=home, environ={}, now=NOW)
