"""The rollout sensor requests promotion and review runs until they succeed (ROLL-2, DATA-5)."""

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
    FAULTY,
    HEALTHY,
    after_last_check,
    begin_rollout,
    make_paired_samples,
    read_rollout,
    register_two_versions,
    report,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[RolloutLedger]:
    with RolloutLedger.open(f"sqlite:///{tmp_path / 'registry.db'}", clock=Clock()) as opened:
        register_two_versions(opened, ArtifactStore(tmp_path / "artifacts"))
        yield opened


def run_keys(ledger: RolloutLedger, *seconds: float) -> list[str]:
    """Return the run keys requested at these times (in seconds) after the last transition."""
    rollout = read_rollout(ledger)
    since = ledger.rollout_transitions(rollout.id)[-1].at
    found = [
        review_and_promotion_requests(MODEL, ledger, rollout, since + timedelta(seconds=s))
        for s in seconds
    ]
    return [str(request.run_key) for requests in found for request in requests]


def report_until(ledger: RolloutLedger, counts: ArmCounts, *, phase: str) -> None:
    for _ in range(10):
        now = after_last_check(ledger)
        samples = make_paired_samples(read_rollout(ledger), [20, 21])
        report(ledger, at=now, challenger=counts, samples=samples)
        reconcile(ledger, MODEL, now=now)
        if read_rollout(ledger).phase == phase:
            return
    raise AssertionError(read_rollout(ledger).phase)


def tick(
    state: SluiceState, *, required: bool = False
) -> dg.SensorResult | dg.SkipReason | dg.RunRequest | None:
    sensor = rollout_sensor(
        MODEL,
        [promotion_job(MODEL, checks_approval=False), review_job(MODEL)],
        approval_settings=ApprovalSettings(required=required),
    )
    return sensor(dg.build_sensor_context(resources={"sluice_state": state}))


def test_promotion_is_requested_again_after_300_s(ledger: RolloutLedger) -> None:
    begin_rollout(ledger)
    report_until(ledger, HEALTHY, phase="awaiting_promotion")

    initial, before_retry, after_retry, clock_set_back = run_keys(ledger, 0, 299, 301, -3600)

    assert initial == before_retry == clock_set_back  # a clock set back requests nothing twice
    assert after_retry != initial


def test_unwritable_page_does_not_block_the_promotion(
    ledger: RolloutLedger, tmp_path: Path
) -> None:
    begin_rollout(ledger)
    report_until(ledger, HEALTHY, phase="awaiting_promotion")
    (tmp_path / "reports").write_text("not a folder")
    state = SluiceState.at(
        Home(root=tmp_path, registry_url=f"sqlite:///{tmp_path / 'registry.db'}")
    )
    found = tick(state)

    assert isinstance(found, dg.SensorResult)
    assert [request.job_name for request in found.run_requests or []] == [f"{MODEL}_promotion"]


def test_review_of_failed_rows_is_requested_daily_for_a_week(ledger: RolloutLedger) -> None:
    begin_rollout(ledger)
    report_until(ledger, FAULTY, phase="rolled_back")
    day = 86_400

    found = run_keys(ledger, *(n * day for n in range(30)))

    assert len(found) == 30
    assert len(set(found)) == 8  # at once, then each day of a week


def test_review_of_rows_without_keys_is_requested_once(ledger: RolloutLedger) -> None:
    begin_rollout(ledger)
    report(ledger, at=after_last_check(ledger), challenger=FAULTY)
    reconcile(ledger, MODEL, now=after_last_check(ledger))

    assert read_rollout(ledger).phase == "rolled_back"
    assert len(set(run_keys(ledger, 0, 86_400, 10 * 86_400))) == 1


def test_promotion_that_requires_approval_is_requested_after_the_approval(
    ledger: RolloutLedger, tmp_path: Path
) -> None:
    begin_rollout(ledger)
    report_until(ledger, HEALTHY, phase="awaiting_promotion")
    state = SluiceState.at(
        Home(root=tmp_path, registry_url=f"sqlite:///{tmp_path / 'registry.db'}")
    )
    waiting = tick(state, required=True)
    assert isinstance(waiting, dg.SensorResult)  # reports the transitions
    assert not waiting.run_requests

    ledger.approve(MODEL, 2, actor="ada", reason="reviewed")

    approved = tick(state, required=True)
    assert isinstance(approved, dg.SensorResult)
    assert [request.job_name for request in approved.run_requests or []] == [f"{MODEL}_promotion"]
