"""ROLL-2, DATA-5: the runs that a rollout requests are requested again until they succeed."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest

from sluice.assets.resources import SluiceState
from sluice.base.artifacts import ArtifactStore
from sluice.base.home import Home
from sluice.pipelines.jobs import promotion_job, review_job
from sluice.pipelines.rollout_sensor import review_and_promotion_requests, rollout_sensor
from sluice.registry.approval_settings import ApprovalSettings
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.observations import ArmCounts
from sluice.rollout_control.controller import reconcile
from tests.sluice.registry.ledger_samples import MODEL, Clock
from tests.sluice.rollout_control.controller_samples import (
    HEALTHY,
    SICK,
    begin,
    current,
    later,
    pairs,
    report,
    two_versions,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[RolloutLedger]:
    with RolloutLedger.open(f"sqlite:///{tmp_path / 'registry.db'}", clock=Clock()) as opened:
        two_versions(opened, ArtifactStore(tmp_path / "artifacts"))
        yield opened


def keys(ledger: RolloutLedger, *seconds: float) -> list[str]:
    """Return the run keys so many seconds after the last transition."""
    rollout = current(ledger)
    since = ledger.rollout_transitions(rollout.id)[-1].at
    found = [
        review_and_promotion_requests(MODEL, ledger, rollout, since + timedelta(seconds=s))
        for s in seconds
    ]
    return [str(request.run_key) for requests in found for request in requests]


def play(ledger: RolloutLedger, counts: ArmCounts, *, until: str) -> None:
    for _ in range(10):
        now = later(ledger)
        named = pairs(current(ledger), [20, 21])
        report(ledger, at=now, challenger=counts, samples=named)
        reconcile(ledger, MODEL, now=now)
        if current(ledger).phase == until:
            return
    raise AssertionError(current(ledger).phase)


def tick(
    state: SluiceState, *, required: bool = False
) -> dg.SensorResult | dg.SkipReason | dg.RunRequest | None:
    sensor = rollout_sensor(
        MODEL,
        [promotion_job(MODEL, checks_approval=False), review_job(MODEL)],
        approval_settings=ApprovalSettings(required=required),
    )
    return sensor(dg.build_sensor_context(resources={"sluice_state": state}))


def test_a_promotion_whose_run_died_is_asked_for_again(ledger: RolloutLedger) -> None:
    begin(ledger)
    play(ledger, HEALTHY, until="awaiting_promotion")

    at_once, soon, much_later, back = keys(ledger, 0, 299, 301, -3600)

    assert at_once == soon == back  # a clock that went back asks for nothing twice
    assert much_later != at_once


def test_a_page_that_cannot_be_written_keeps_no_promotion_back(
    ledger: RolloutLedger, tmp_path: Path
) -> None:
    begin(ledger)
    play(ledger, HEALTHY, until="awaiting_promotion")
    (tmp_path / "reports").write_text("not a folder")
    state = SluiceState.at(
        Home(root=tmp_path, registry_url=f"sqlite:///{tmp_path / 'registry.db'}")
    )
    found = tick(state)

    assert isinstance(found, dg.SensorResult)
    assert [request.job_name for request in found.run_requests or []] == [f"{MODEL}_promotion"]


def test_failed_rows_are_looked_for_until_they_can_have_come(ledger: RolloutLedger) -> None:
    begin(ledger)
    play(ledger, SICK, until="rolled_back")
    day = 86_400

    found = keys(ledger, *(n * day for n in range(30)))

    assert len(found) == 30
    assert len(set(found)) == 8  # at once, then each day of a week


def test_rows_without_names_are_looked_for_once(ledger: RolloutLedger) -> None:
    begin(ledger)
    report(ledger, at=later(ledger), challenger=SICK)
    reconcile(ledger, MODEL, now=later(ledger))

    assert current(ledger).phase == "rolled_back"
    assert len(set(keys(ledger, 0, 86_400, 10 * 86_400))) == 1


def test_a_promotion_without_its_required_approval_is_asked_for_once_it_is_approved(
    ledger: RolloutLedger, tmp_path: Path
) -> None:
    begin(ledger)
    play(ledger, HEALTHY, until="awaiting_promotion")
    state = SluiceState.at(
        Home(root=tmp_path, registry_url=f"sqlite:///{tmp_path / 'registry.db'}")
    )
    news = tick(state, required=True)
    assert isinstance(news, dg.SensorResult)  # reports the transitions
    assert not news.run_requests

    ledger.approve(MODEL, 2, actor="ada", reason="reviewed")

    approved = tick(state, required=True)
    assert isinstance(approved, dg.SensorResult)
    assert [request.job_name for request in approved.run_requests or []] == [f"{MODEL}_promotion"]
