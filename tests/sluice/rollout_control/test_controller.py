"""Rollout controller with clock jumps, missing servers, or stopped (ROLL-1, ROLL-2)."""

import dataclasses
import time
from datetime import UTC, datetime, timedelta

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.traffic_split import TrafficSplit
from sluice.rollout_control.controller import assess, reconcile
from tests.sluice.registry.ledger_samples import MODEL
from tests.sluice.rollout_control.controller_samples import (
    begin_rollout,
    read_rollout,
    register_two_versions,
    report,
)
from tests.sluice.serving.serving_samples import (
    LinearNetwork,
    SplitSource,
    deployed,
    quick_settings,
    run_server,
)

MINUTE = RolloutSettings(min_step_s=60, min_requests=1, lease_s=180)


def at(ledger: RolloutLedger, seconds: float) -> datetime:
    """Return the time ``seconds`` after the start of the rollout."""
    return read_rollout(ledger).started_at + timedelta(seconds=seconds)


def report_and_reconcile(ledger: RolloutLedger, seconds: float) -> str:
    """Report and reconcile ``seconds`` after the start; return the outcome."""
    now = at(ledger, seconds)
    report(ledger, at=now)
    transition = reconcile(ledger, MODEL, now=now)
    assert transition is not None
    return transition.outcome


def test_clock_set_back_changes_no_step_duration(ledger: RolloutLedger) -> None:
    begin_rollout(ledger, MINUTE)

    assert report_and_reconcile(ledger, 50) == "wait"
    # The clock is set back by an hour: the elapsed time remains 50 s.
    assert report_and_reconcile(ledger, -3600) == "wait"
    assert report_and_reconcile(ledger, -3595) == "wait"
    assert report_and_reconcile(ledger, -3589) == "advance"  # 61 s
    assert read_rollout(ledger).step == 1


def test_observe_returns_the_transition_of_reconcile_without_recording_it(
    ledger: RolloutLedger,
) -> None:
    begin_rollout(ledger, MINUTE)
    report(ledger, at=at(ledger, 61))
    before = read_rollout(ledger)
    observed = assess(ledger, before, now=at(ledger, 61))

    assert read_rollout(ledger) == before
    assert reconcile(ledger, MODEL, now=at(ledger, 61)) == observed
    assert observed.outcome == "advance"


def test_reconcile_without_a_rollout_returns_none(ledger: RolloutLedger) -> None:
    assert reconcile(ledger, MODEL, now=datetime.now(UTC)) is None


@pytest.mark.parametrize(
    ("seconds", "problems", "outcome"),
    [
        (61, ["WeightsDamaged: no such file", "WeightsDamaged: no such file"], "roll_back"),
        (61, ["WeightsDamaged: no such file", ""], "advance"),  # one server has loaded it
        (59, ["WeightsDamaged: no such file", "WeightsDamaged: no such file"], "wait"),
    ],
)
def test_challenger_that_no_server_can_load_is_rolled_back(
    ledger: RolloutLedger, seconds: float, problems: list[str], outcome: str
) -> None:
    begin_rollout(ledger, MINUTE)
    now = at(ledger, seconds)
    for number, problem in enumerate(problems):
        report(ledger, at=now, problem=problem, server=f"s{number}")
    transition = reconcile(ledger, MODEL, now=now)

    assert transition is not None
    assert transition.outcome == outcome
    if outcome == "roll_back":
        assert (
            "No server can load the challenger: WeightsDamaged: no such file" in transition.reason
        )
        assert "Fix the problem that the servers report" in transition.remedy
        split = ledger.traffic_split(MODEL)
        assert split is not None
        assert split.challenger is None


def test_load_problem_of_a_server_without_recent_report_is_ignored(ledger: RolloutLedger) -> None:
    begin_rollout(ledger, MINUTE)
    report(ledger, at=at(ledger, 20), problem="WeightsDamaged: no such file")
    transition = reconcile(ledger, MODEL, now=at(ledger, 70))

    assert transition is not None
    assert transition.outcome == "wait"


class LedgerSplitSource(SplitSource):
    """Source of the traffic split that reads the ledger, as a server does."""

    def __init__(self, ledger: RolloutLedger) -> None:
        self._ledger = ledger

    def read(self) -> TrafficSplit:
        split = self._ledger.traffic_split(MODEL)
        assert split is not None
        return split


@pytest.mark.slow
def test_servers_return_to_production_if_the_controller_stops(
    url: str, store: ArtifactStore
) -> None:
    """A real server and ledger; no reconcile happens for longer than the lease."""
    settings = RolloutSettings(
        strategy="canary", shares=(1.0,), min_step_s=600, max_step_s=900, lease_s=1.5
    )
    with RolloutLedger.open(url, clock=lambda: datetime.now(UTC)) as ledger:
        register_two_versions(ledger, store)
        models = {}
        for number in (1, 2):
            digest = ledger.version(MODEL, number).candidate
            model = deployed(f"v{number}", number, LinearNetwork(float(number)))
            models[digest] = dataclasses.replace(model, candidate=digest)
        source = LedgerSplitSource(ledger)
        with run_server(
            models,
            source.read(),
            settings=quick_settings(),
            source=source,
            reports=ledger.observations,
        ) as server:
            begin_rollout(ledger, settings)
            arms = []
            until = time.monotonic() + 3  # twice the lease
            while time.monotonic() < until:
                reconcile(ledger, MODEL, now=datetime.now(UTC))
                arms.append(server.predict(1.0).json()["arm"])
                time.sleep(0.05)
            assert arms[-1] == "challenger"
            responses = [server.predict(1.0) for _ in range(20)]
            stop_time = time.monotonic()
            while responses[-1].json()["arm"] == "challenger" and time.monotonic() < stop_time + 10:
                responses.append(server.predict(1.0))
                time.sleep(0.05)
            elapsed_s = time.monotonic() - stop_time

            assert {response.status_code for response in responses} == {200}
            assert responses[-1].json()["arm"] == "production"
            assert elapsed_s < 1.5 + 5  # the step itself may take 10 minutes
            transition = reconcile(ledger, MODEL, now=datetime.now(UTC) + timedelta(seconds=2))
            assert transition is not None
            assert transition.outcome == "roll_back"
            assert transition.reason.startswith("The rollout was not checked for")
            assert read_rollout(ledger).phase == "rolled_back"
