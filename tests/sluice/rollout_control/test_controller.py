"""ROLL-1, ROLL-2: a rollout with jumping clocks, missing servers and without a controller."""

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
from tests.sluice.rollout_control.controller_samples import begin, current, report, two_versions
from tests.sluice.serving.serving_samples import Says, Source, deployed, live, quick_settings

MINUTE = RolloutSettings(min_step_s=60, min_requests=1, lease_s=180)


def at(ledger: RolloutLedger, seconds: float) -> datetime:
    return current(ledger).started_at + timedelta(seconds=seconds)


def look(ledger: RolloutLedger, seconds: float) -> str:
    """Report and reconcile, a number of seconds after the start by the controller's clock."""
    now = at(ledger, seconds)
    report(ledger, at=now)
    done = reconcile(ledger, MODEL, now=now)
    assert done is not None
    return done.outcome


def test_a_clock_that_goes_back_changes_no_step_duration(ledger: RolloutLedger) -> None:
    begin(ledger, MINUTE)

    assert look(ledger, 50) == "wait"
    assert look(ledger, -3600) == "wait"  # an hour back: 50 s have passed all the same
    assert look(ledger, -3595) == "wait"
    assert look(ledger, -3589) == "advance"  # 61 s
    assert current(ledger).step == 1


def test_observe_equals_reconcile_without_writing(ledger: RolloutLedger) -> None:
    begin(ledger, MINUTE)
    report(ledger, at=at(ledger, 61))
    before = current(ledger)
    would = assess(ledger, before, now=at(ledger, 61))

    assert current(ledger) == before
    assert reconcile(ledger, MODEL, now=at(ledger, 61)) == would
    assert would.outcome == "advance"


def test_without_a_rollout_there_is_nothing_to_reconcile(ledger: RolloutLedger) -> None:
    assert reconcile(ledger, MODEL, now=datetime.now(UTC)) is None


@pytest.mark.parametrize(
    ("seconds", "problems", "outcome"),
    [
        (61, ["WeightsDamaged: no such file", "WeightsDamaged: no such file"], "roll_back"),
        (61, ["WeightsDamaged: no such file", ""], "advance"),  # one server has it
        (59, ["WeightsDamaged: no such file", "WeightsDamaged: no such file"], "wait"),
    ],
)
def test_a_challenger_that_no_server_can_load_rolls_back(
    ledger: RolloutLedger, seconds: float, problems: list[str], outcome: str
) -> None:
    begin(ledger, MINUTE)
    now = at(ledger, seconds)
    for number, problem in enumerate(problems):
        report(ledger, at=now, problem=problem, server=f"s{number}")
    done = reconcile(ledger, MODEL, now=now)

    assert done is not None
    assert done.outcome == outcome
    if outcome == "roll_back":
        assert "No server can load the challenger: WeightsDamaged: no such file" in done.reason
        assert "Fix the problem that the servers report" in done.remedy
        weights = ledger.traffic_split(MODEL)
        assert weights is not None
        assert weights.challenger is None


def test_servers_without_recent_reports_are_ignored(ledger: RolloutLedger) -> None:
    begin(ledger, MINUTE)
    report(ledger, at=at(ledger, 20), problem="WeightsDamaged: no such file")
    done = reconcile(ledger, MODEL, now=at(ledger, 70))

    assert done is not None
    assert done.outcome == "wait"


class FollowsLedger(Source):
    """The traffic split of the ledger, as a server follows it."""

    def __init__(self, ledger: RolloutLedger) -> None:
        self._ledger = ledger

    def read(self) -> TrafficSplit:
        found = self._ledger.traffic_split(MODEL)
        assert found is not None
        return found


@pytest.mark.slow
def test_without_a_controller_servers_return_to_production(url: str, store: ArtifactStore) -> None:
    """A real server follows a real ledger, and the controller stops."""
    short = RolloutSettings(
        strategy="canary", shares=(1.0,), min_step_s=600, max_step_s=900, lease_s=1.5
    )
    with RolloutLedger.open(url, clock=lambda: datetime.now(UTC)) as ledger:
        two_versions(ledger, store)
        models = {}
        for number in (1, 2):
            digest = ledger.version(MODEL, number).candidate
            said = deployed(f"v{number}", number, Says(float(number)))
            models[digest] = dataclasses.replace(said, candidate=digest)
        source = FollowsLedger(ledger)
        with live(
            models,
            source.read(),
            settings=quick_settings(),
            source=source,
            reports=ledger.observations,
        ) as server:
            begin(ledger, short)
            arms = []
            until = time.monotonic() + 3  # twice the lease
            while time.monotonic() < until:
                reconcile(ledger, MODEL, now=datetime.now(UTC))
                arms.append(server.ask(1.0).json()["arm"])
                time.sleep(0.05)
            assert arms[-1] == "challenger"
            answers = [server.ask(1.0) for _ in range(20)]
            gone = time.monotonic()
            while answers[-1].json()["arm"] == "challenger" and time.monotonic() < gone + 10:
                answers.append(server.ask(1.0))
                time.sleep(0.05)
            took_s = time.monotonic() - gone

            assert {answer.status_code for answer in answers} == {200}
            assert answers[-1].json()["arm"] == "production"
            assert took_s < 1.5 + 5  # the step itself may take 10 minutes
            done = reconcile(ledger, MODEL, now=datetime.now(UTC) + timedelta(seconds=2))
            assert done is not None
            assert done.outcome == "roll_back"
            assert done.reason.startswith("The rollout was not checked for")
            assert current(ledger).phase == "rolled_back"
