"""ROLL-1, ROLL-2: the page of a rollout tells its story, from the ledger alone."""

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
from sluice.rollout import changes
from sluice.rollout.agreement import Agreement
from sluice.rollout.observations import ArmCounts
from sluice.rollout.settings import RolloutSettings
from sluice.rollout_control.drive import drive
from sluice.rollout_control.failures import keep_failures
from sluice.rollout_control.quality import note_quality_of
from sluice.rollout_control.report import save_rollout_page
from sluice.rollout_control.timeline import Mark, timeline_svg
from tests.sluice.registry.ledger_samples import MODEL, NOW
from tests.sluice.rollout_control.delivery_samples import (
    PIPELINE,
    SICK,
    UNSEEN,
    begin,
    current,
    echo_frame,
    pairs,
    report,
    sample,
)

SETTINGS = RolloutSettings(min_step_s=300, min_requests=100, quality_rows=60, max_step_s=1200)


class Slow:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = NOW + timedelta(minutes=1)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Slow:
    return Slow()


@pytest.fixture
def ledger(url: str, template: Path, tmp_path: Path, clock: Slow) -> Iterator[RolloutLedger]:
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    with RolloutLedger.open(url, clock=clock) as opened:
        yield opened


def pass_time(
    ledger: RolloutLedger, clock: Slow, seconds: int, counts: ArmCounts | None = None
) -> None:
    """Look often enough for the lease, while servers report."""
    for _ in range(seconds // 150):
        clock.now += timedelta(seconds=150)
        if counts is not None:
            report(ledger, at=clock.now, challenger=counts)
        drive(ledger, MODEL, now=clock.now)


def healthy_story(ledger: RolloutLedger, store: ArtifactStore, clock: Slow) -> None:
    rollout = begin(ledger, SETTINGS, Agreement(difference=1.2, spread=0.9, rows=700))
    samples = pairs(rollout, range(UNSEEN, UNSEEN + 300), challenger_error=0.7)
    report(ledger, at=clock.now, samples=samples)
    note_quality_of(ledger, PIPELINE, store, echo_frame(UNSEEN + 80), clock.now)
    pass_time(ledger, clock, 1200, ArmCounts(requests=210, errors=1))
    note_quality_of(ledger, PIPELINE, store, echo_frame(), clock.now)
    pass_time(ledger, clock, 300, ArmCounts(requests=200, errors=1))
    ledger.finish_rollout(MODEL, actor="rollout_job", store=store)


def rolled_back_story(ledger: RolloutLedger, clock: Slow) -> None:
    rollout = begin(ledger, SETTINGS)
    pass_time(ledger, clock, 300, ArmCounts(requests=210, errors=1))
    failed = [sample(rollout, key=str(500 + n), fault="errors") for n in range(30)]
    clock.now += timedelta(seconds=60)
    report(ledger, at=clock.now, challenger=SICK, samples=failed)
    drive(ledger, MODEL, now=clock.now)


def paused_story(ledger: RolloutLedger, clock: Slow) -> None:
    begin(ledger, SETTINGS)
    pass_time(ledger, clock, 300, ArmCounts(requests=210, errors=1))
    now = current(ledger)
    clock.now += timedelta(seconds=20)
    by_hand = changes.pause(
        now, now=clock.now, actor="ada <ops>", reason="The market opens & nobody is here."
    )
    ledger.record_transition(now, by_hand)
    pass_time(ledger, clock, 600)
    resumed = changes.resume(
        current(ledger), now=clock.now, actor="ada <ops>", reason="It has opened."
    )
    ledger.record_transition(current(ledger), resumed)
    pass_time(ledger, clock, 1350)


def page_of(ledger: RolloutLedger, tmp_path: Path, clock: Slow, store: ArtifactStore) -> str:
    home = Home.from_environment({"SLUICE_HOME": str(tmp_path)}, cwd=tmp_path)
    rollout = current(ledger)
    failed = keep_failures(
        ledger,
        rollout.id,
        PIPELINE.loaded_workload,
        echo_frame(),
        SuiteLibrary(home.root / "suites" / MODEL, store),
        clock.now,
    )
    saved = save_rollout_page(
        ledger,
        rollout.id,
        failed=failed if rollout.is_over else None,
        home=home,
        environ={},
        now=clock.now,
    )
    assert saved.path.parent == home.reports / "rollouts" / MODEL
    return saved.path.read_text()


def words(page: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page.partition("<main>")[2])).split())


def test_a_healthy_story(
    ledger: RolloutLedger, store: ArtifactStore, clock: Slow, tmp_path: Path
) -> None:
    healthy_story(ledger, store, clock)
    page = page_of(ledger, tmp_path, clock, store)

    assert first_tag(page) == ("promoted", "good")
    told = words(page)
    for said in (
        "After 25 min it was promoted: every step held.",
        "ada started to bring version 2 into production in place of version 1, by canary "
        "(5 %, 25 %, 50 %, 100 %). Why: The gate said PROMOTE.",
        "4 of 4 steps held.",
        "On 700 held-out rows they are 1.2 apart",
        "PROMOTE 300",
        "all looks together spend alpha = 0.05",
    ):
        assert said in told
    assert page.count("<circle") == 6  # start, four steps, promoted
    assert "breach" not in told


def test_a_rolled_back_story(
    ledger: RolloutLedger, store: ArtifactStore, clock: Slow, tmp_path: Path
) -> None:
    rolled_back_story(ledger, clock)
    page = page_of(ledger, tmp_path, clock, store)

    assert first_tag(page) == ("rolled back", "bad")
    told = words(page)
    for said in (
        "After 6 min it was rolled back at 25 % of the users, by rollout. Worse than production: "
        "90 errors in 200 requests of the challenger",
        "errors breach",
        "holds 30 rows it failed on.",
        "Suite 'rollout-",
        "2: 25 % challenger 50 % 200 90 (45 %)",
    ):
        assert said in told


def test_a_paused_story_with_names_that_are_no_html(
    ledger: RolloutLedger, store: ArtifactStore, clock: Slow, tmp_path: Path
) -> None:
    paused_story(ledger, clock)
    page = page_of(ledger, tmp_path, clock, store)

    assert first_tag(page) == ("paused", "unsure")
    told = words(page)
    for said in (
        "It is paused at 25 % of the users. 1200 s did not settle the step",
        "and it paused 2 times",
        "ada <ops> The market opens & nobody is here.",
        "No verdict: fewer than 60 rows had labels.",
    ):
        assert said in told
    assert "ada &lt;ops&gt;" in page
    assert "<ops>" not in page


def test_the_curve_is_the_share_and_ends_now() -> None:
    marks = [
        Mark(at=NOW, share=0.0, tone="plain", said="start"),
        Mark(at=NOW + timedelta(seconds=50), share=0.5, tone="good", said="on & on"),
    ]
    svg = timeline_svg(marks, until=NOW + timedelta(seconds=100))

    line = re.search(r'polyline class="share" points="([^"]+)"', svg)
    assert line is not None
    points = [tuple(map(float, point.split(","))) for point in line[1].split()]
    assert [x for x, _ in points] == [52, 517, 517, 982]  # left edge, middle, right edge
    (bottom, _, half, _) = (y for _, y in points)
    assert (bottom, half) == (227, 140)  # the floor at 53 + 174, and half way up
    assert "on &amp; on" in svg


def test_no_such_rollout_is_refused(ledger: RolloutLedger, tmp_path: Path) -> None:
    home = Home.from_environment({"SLUICE_HOME": str(tmp_path)}, cwd=tmp_path)
    with pytest.raises(ContractError, match="no rollout 'nope'"):
        save_rollout_page(ledger, "nope", failed=None, home=home, environ={}, now=NOW)
