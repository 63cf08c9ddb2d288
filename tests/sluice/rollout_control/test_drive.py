"""ROLL-1, ROLL-2: a rollout among clocks that jump, servers that are gone and nobody who looks."""

import dataclasses
import time
from datetime import UTC, datetime, timedelta

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.weights import Weights
from sluice.rollout_control.drive import drive, look_at
from tests.sluice.registry.ledger_samples import MODEL
from tests.sluice.rollout_control.delivery_samples import begin, current, report, two_versions
from tests.sluice.serving.serving_samples import Says, Source, deployed, live, quick_settings

MINUTE = RolloutSettings(min_step_s=60, min_requests=1, lease_s=180)


def at(ledger: RolloutLedger, seconds: float) -> datetime:
    return current(ledger).started_at + timedelta(seconds=seconds)


def look(ledger: RolloutLedger, seconds: float) -> str:
    """Report and look, so many seconds after the start by the clock of whoever looks."""
    now = at(ledger, seconds)
    report(ledger, at=now)
    done = drive(ledger, MODEL, now=now)
    assert done is not None
    return done.outcome


def test_a_clock_that_goes_back_wins_no_time_and_loses_none(ledger: RolloutLedger) -> None:
    begin(ledger, MINUTE)

    assert look(ledger, 50) == "hold"
    assert look(ledger, -3600) == "hold"  # an hour back: 50 s have passed all the same
    assert look(ledger, -3595) == "hold"
    assert look(ledger, -3589) == "advance"  # 61 s
    assert current(ledger).step == 1


def test_a_look_that_writes_nothing_is_the_look_that_would_be(ledger: RolloutLedger) -> None:
    begin(ledger, MINUTE)
    report(ledger, at=at(ledger, 61))
    before = current(ledger)
    would = look_at(ledger, before, now=at(ledger, 61))

    assert current(ledger) == before
    assert drive(ledger, MODEL, now=at(ledger, 61)) == would
    assert would.outcome == "advance"


def test_without_a_rollout_there_is_nothing_to_drive(ledger: RolloutLedger) -> None:
    assert drive(ledger, MODEL, now=datetime.now(UTC)) is None


@pytest.mark.parametrize(
    ("seconds", "problems", "outcome"),
    [
        (61, ["WeightsDamaged: no such file", "WeightsDamaged: no such file"], "roll_back"),
        (61, ["WeightsDamaged: no such file", ""], "advance"),  # one server has it
        (59, ["WeightsDamaged: no such file", "WeightsDamaged: no such file"], "hold"),
    ],
)
def test_a_challenger_that_no_server_can_load_goes_back(
    ledger: RolloutLedger, seconds: float, problems: list[str], outcome: str
) -> None:
    begin(ledger, MINUTE)
    now = at(ledger, seconds)
    for number, problem in enumerate(problems):
        report(ledger, at=now, problem=problem, server=f"s{number}")
    done = drive(ledger, MODEL, now=now)

    assert done is not None
    assert done.outcome == outcome
    if outcome == "roll_back":
        assert "No server can load its challenger: WeightsDamaged: no such file" in done.reason
        assert "Mend what the servers say" in done.remedy
        weights = ledger.weights(MODEL)
        assert weights is not None
        assert weights.challenger is None


def test_servers_that_were_not_heard_of_for_long_say_nothing(ledger: RolloutLedger) -> None:
    begin(ledger, MINUTE)
    report(ledger, at=at(ledger, 20), problem="WeightsDamaged: no such file")
    done = drive(ledger, MODEL, now=at(ledger, 70))

    assert done is not None
    assert done.outcome == "hold"


class FollowsLedger(Source):
    """What a server follows: the weights as the ledger says them."""

    def __init__(self, ledger: RolloutLedger) -> None:
        self._ledger = ledger

    def read(self) -> Weights:
        found = self._ledger.weights(MODEL)
        assert found is not None
        return found


@pytest.mark.slow
def test_a_rollout_that_nobody_drives_ends_in_production_by_the_servers_themselves(
    url: str, store: ArtifactStore
) -> None:
    """A real server follows a real ledger; the one who looks goes away."""
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
                drive(ledger, MODEL, now=datetime.now(UTC))
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
            done = drive(ledger, MODEL, now=datetime.now(UTC) + timedelta(seconds=2))
            assert done is not None
            assert done.outcome == "roll_back"
            assert done.reason.startswith("Nobody looked at it for")
            assert current(ledger).phase == "rolled_back"
