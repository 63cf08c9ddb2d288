"""Real processes that drive, race and die in a rollout: ``... MODE URL ARTIFACTS STRIDE``.

A program of its own, because it forks: the test process has threads. Prints what happened as JSON.
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
from tests.sluice.rollout_control.controller_samples import QUICK, current, report

SECOND = timedelta(seconds=1)


class Bench:
    """One registry: version 2 is in production after 1; 3 and 4 were judged against it."""

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

    def see(self) -> tuple[str, int | None, int]:
        """Return phase, production and transitions, after checking that all of it agrees."""
        with self.open() as ledger:
            findings = ledger.verify(None, store=self.store)
            assert not findings, findings
            rollout = current(ledger)
            weights = ledger.traffic_split(MODEL)
            number = ledger.production_number(MODEL)
            assert weights is not None
            assert number is not None
            assert weights.production == ledger.version(MODEL, number).candidate
            assert (weights.challenger is None) == (rollout.is_over or number != 2)
            return rollout.phase, number, len(ledger.rollout_transitions(rollout.id))

    def bring(self) -> str:
        """Report, reconcile and finish until the rollout is over; return its end."""
        with self.open() as ledger:
            while not (now := current(ledger)).is_over:
                if now.phase == "awaiting_promotion":
                    ledger.finish_rollout(MODEL, actor="sensor", store=self.store)
                    continue
                report(ledger, at=now.checked_at + SECOND, server="s1")
                reconcile(ledger, MODEL, now=now.checked_at + SECOND)
            return current(ledger).phase


def kill_everywhere(bench: Bench, stride: int) -> dict[str, object]:
    """Kill the controller at every ``stride``-th step; another one continues."""
    bench.start(3)
    seen = [bench.see()]
    for step in range(1, 2000, stride):

        def work(step: int = step) -> None:
            die_at(step)
            bench.bring()

        code = run_in_child(work)
        seen.append(bench.see())
        if code == 0:
            break
        assert code == -signal.SIGKILL, code
    with bench.open() as ledger:
        told = ledger.rollout_transitions(current(ledger).id)
    return {"seen": seen, "outcomes": [transition.outcome for transition in told]}


def race_to_start(bench: Bench) -> list[str]:
    """Let eight processes start a rollout of two versions at once."""
    return race(lambda index: f"started {bench.start(3 + index % 2).version}")


def race_to_end(bench: Bench) -> dict[str, object]:
    """Promote, roll back, finish, abort and reconcile concurrently while promotion is awaited."""
    bench.start(3)
    with bench.open() as ledger:
        for _ in QUICK.steps:
            now = current(ledger)
            report(ledger, at=now.checked_at + SECOND)
            reconcile(ledger, MODEL, now=now.checked_at + SECOND)
        assert current(ledger).phase == "awaiting_promotion"

    def work(index: int) -> str:
        with bench.open() as ledger:
            if index in (0, 1):
                return ledger.finish_rollout(MODEL, actor="s", store=bench.store).outcome
            if index == 2:
                ledger.promote(
                    MODEL, 4, expected=2, actor="bob", reason="by hand", store=bench.store
                )
                return "promoted by hand"
            if index == 3:
                ledger.rollback(MODEL, expected=2, actor="eve", reason="bad", store=bench.store)
                return "rolled back by hand"
            rollout = current(ledger)
            if index == 4:
                abort = transitions.abort(
                    rollout, now=rollout.checked_at, actor="ada", reason="stop"
                )
                ledger.record_transition(rollout, abort)
                return "aborted"
            looked = try_reconcile(ledger, MODEL, now=rollout.checked_at + SECOND)
            return "no look" if looked is None else f"looked: {looked.outcome}"

    said = race(work)
    with bench.open() as ledger:  # whoever looks next ends what is not over
        now = current(ledger)
        try_reconcile(ledger, MODEL, now=now.checked_at + SECOND)
        history = [f"{e.action} {e.to_version}" for e in ledger.history(MODEL) if e.from_version]
    return {"said": said, "seen": bench.see(), "history": history}


def main() -> None:
    """Run one mode, or each on a file of its own: what all of them import takes seconds."""
    mode, url, artifacts, stride = sys.argv[1:5]
    run: dict[str, Callable[[Bench], object]] = {
        "kill": lambda bench: kill_everywhere(bench, int(stride)),
        "start": race_to_start,
        "end": race_to_end,
    }
    modes = list(run) if mode == "each" else [mode]
    told = {
        name: run[name](Bench(url if mode == name else f"{url}-{name}", Path(artifacts)))
        for name in modes
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
