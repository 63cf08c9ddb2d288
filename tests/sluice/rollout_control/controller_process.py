"""Kill or race processes that control a rollout: ``python -m ... MODE URL ARTIFACTS STRIDE``.

This is a separate program because it forks, and the test process has threads. It prints the
result as JSON.
"""

import json
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from sluice.base.artifacts import ArtifactStore
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout import transitions
from sluice.rollout.state import Rollout
from sluice.rollout_control.controller import reconcile, try_reconcile
from tests.sluice.registry.ledger_driver import die_at, race, run_in_child
from tests.sluice.registry.ledger_samples import MODEL, Clock, promote_chain, register_sample
from tests.sluice.rollout_control.controller_samples import QUICK, read_rollout, report

SECOND = timedelta(seconds=1)


class ControllerDriver:
    """A registry with version 2 in production and verdict PROMOTE on versions 3 and 4."""

    def __init__(self, url: str, artifacts: Path) -> None:
        self.url = url
        self.store = ArtifactStore(artifacts)
        with self.open() as ledger:
            promote_chain(ledger, self.store, 2)
            production = ledger.version(MODEL, 2).candidate
            for salt in (3, 4):
                register_sample(ledger, self.store, salt=salt, reference=production)

    def open(self) -> RolloutLedger:
        return RolloutLedger.open(self.url, clock=Clock())

    def start(self, version: int) -> Rollout:
        with self.open() as ledger:
            return ledger.start_rollout(MODEL, version, QUICK, actor="a", reason="r").rollout

    def check_state(self) -> tuple[str, int | None, int]:
        """Check consistency; return phase, production and number of transitions."""
        with self.open() as ledger:
            findings = ledger.verify(None, store=self.store)
            assert not findings, findings
            rollout = read_rollout(ledger)
            split = ledger.traffic_split(MODEL)
            number = ledger.production_number(MODEL)
            assert split is not None
            assert number is not None
            assert split.production == ledger.version(MODEL, number).candidate
            assert (split.challenger is None) == (rollout.is_over or number != 2)
            return rollout.phase, number, len(ledger.rollout_transitions(rollout.id))

    def complete(self) -> str:
        """Report, reconcile and finish until the rollout is over; return its final phase."""
        with self.open() as ledger:
            while not (now := read_rollout(ledger)).is_over:
                if now.phase == "awaiting_promotion":
                    ledger.finish_rollout(MODEL, actor="sensor", store=self.store)
                    continue
                report(ledger, at=now.checked_at + SECOND, server="s1")
                reconcile(ledger, MODEL, now=now.checked_at + SECOND)
            return read_rollout(ledger).phase


def kill_everywhere(driver: ControllerDriver, stride: int) -> dict[str, object]:
    """Kill the controller at every ``stride``-th of its steps; another controller continues."""
    driver.start(3)
    states = [driver.check_state()]
    for step in range(1, 2000, stride):

        def work(step: int = step) -> None:
            die_at(step)
            driver.complete()

        code = run_in_child(work)
        states.append(driver.check_state())
        if code == 0:
            break
        assert code == -signal.SIGKILL, code
    with driver.open() as ledger:
        recorded = ledger.rollout_transitions(read_rollout(ledger).id)
    return {"states": states, "outcomes": [transition.outcome for transition in recorded]}


def race_to_start(driver: ControllerDriver) -> list[str]:
    """Let eight processes start a rollout of two versions at once."""
    return race(lambda index: f"started {driver.start(3 + index % 2).version}")


def race_to_end(driver: ControllerDriver) -> dict[str, object]:
    """Promote, roll back, finish, abort and reconcile concurrently while promotion is awaited."""
    driver.start(3)
    with driver.open() as ledger:
        for _ in QUICK.steps:
            now = read_rollout(ledger)
            report(ledger, at=now.checked_at + SECOND)
            reconcile(ledger, MODEL, now=now.checked_at + SECOND)
        assert read_rollout(ledger).phase == "awaiting_promotion"

    def work(index: int) -> str:
        with driver.open() as ledger:
            if index in (0, 1):
                return ledger.finish_rollout(MODEL, actor="s", store=driver.store).outcome
            if index == 2:
                ledger.promote(
                    MODEL, 4, expected=2, actor="bob", reason="manual", store=driver.store
                )
                return "promoted manually"
            if index == 3:
                ledger.rollback(MODEL, expected=2, actor="eve", reason="bad", store=driver.store)
                return "rolled back manually"
            rollout = read_rollout(ledger)
            if index == 4:
                abort = transitions.abort(
                    rollout, now=rollout.checked_at, actor="ada", reason="stop"
                )
                ledger.record_transition(rollout, abort)
                return "aborted"
            transition = try_reconcile(ledger, MODEL, now=rollout.checked_at + SECOND)
            return "not checked" if transition is None else f"checked: {transition.outcome}"

    results = race(work)
    with driver.open() as ledger:  # the next check ends a rollout that is still running
        now = read_rollout(ledger)
        try_reconcile(ledger, MODEL, now=now.checked_at + SECOND)
        history = [f"{e.action} {e.to_version}" for e in ledger.history(MODEL) if e.from_version]
    return {"results": results, "state": driver.check_state(), "history": history}


def main() -> None:
    """Run one mode, or ``each`` mode on its own database: the imports take seconds."""
    mode, url, artifacts, stride = sys.argv[1:5]
    run: dict[str, Callable[[ControllerDriver], object]] = {
        "kill": lambda driver: kill_everywhere(driver, int(stride)),
        "start": race_to_start,
        "end": race_to_end,
    }
    modes = list(run) if mode == "each" else [mode]
    results = {
        name: run[name](ControllerDriver(url if mode == name else f"{url}-{name}", Path(artifacts)))
        for name in modes
    }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
