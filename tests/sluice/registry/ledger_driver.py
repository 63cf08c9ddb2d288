"""Real processes that die or race in the ledger: ``python -m ... MODE URL ARTIFACTS NUMBER``.

The number is that of the racing promoters, or a death is at every so manieth step.
A program of its own, because it forks: the test process has threads. Prints what happened as JSON.
"""

import json
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.pool import Pool

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import PromotionConflict, SluiceError
from sluice.base.receipts import Receipt
from sluice.registry import loading
from sluice.registry.ledger import Ledger
from sluice.registry.outbox import Delivery
from sluice.registry.records import HistoryEvent
from tests.sluice.registry.ledger_samples import (
    MODEL,
    Clock,
    promote_chain,
    promotion_receipt,
    register_sample,
    sample_lineage,
)

NUM_RACERS = 8


class Bench:
    """One registry and what processes do to it."""

    def __init__(self, url: str, artifacts: Path) -> None:
        self.url = url
        self.store = ArtifactStore(artifacts)

    def open(self) -> Ledger:
        return Ledger.open(self.url, clock=Clock())

    def promote(self, number: int, expected: int | None) -> bool:
        with self.open() as ledger:
            done = ledger.promote(
                MODEL,
                number,
                expected=expected,
                actor=f"process {os.getpid()}",
                reason="race",
                store=self.store,
                reinstate=True,
            )
        return done.moved

    def rollback(self, expected: int) -> bool:
        with self.open() as ledger:
            done = ledger.rollback(
                MODEL, expected=expected, actor="bob", reason="back", store=self.store
            )
        return done.moved

    def production(self) -> int | None:
        """Where the pointer is, after checking that the registry is consistent."""
        with self.open() as ledger:
            findings = ledger.verify(None, store=self.store)
            assert not findings, findings
            found = ledger.production(MODEL)
        return None if found is None else found.number

    def prepare(self) -> None:
        with self.open() as ledger:
            promote_chain(ledger, self.store, 2)
            register_sample(
                ledger, self.store, salt=3, reference=ledger.version(MODEL, 2).candidate
            )


def die_at(step: int) -> None:
    """Arrange for this process to kill itself at its ``step``-th touch of the outside world.

    Touches: each statement, each commit, each connection given back (the first moment after a
    commit), each artifact read. Between two of them nothing outside this process changes.
    """
    count = 0

    def touch(*_: object, **__: object) -> None:
        nonlocal count
        count += 1
        if count == step:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(Engine, "before_cursor_execute", touch)
    event.listen(Engine, "commit", touch)
    event.listen(Pool, "checkin", touch)
    read = ArtifactStore.get

    def get(self: ArtifactStore, digest: str) -> bytes:
        touch()
        return read(self, digest)

    ArtifactStore.get = get  # type: ignore[method-assign]


def in_child(work: Callable[[], object]) -> int:
    """Run ``work`` in a forked process; return its exit code, or minus the signal it died of."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_everywhere(bench: Bench, action: str, stride: int) -> dict[str, int]:
    """Kill a promotion (2 to 3) or rollback (3 to 2) at every ``stride``-th step it has."""
    bench.prepare()
    before, after = (2, 3) if action == "promote" else (3, 2)

    def forth() -> bool:
        return bench.promote(3, 2) if action == "promote" else bench.rollback(3)

    def back() -> bool:
        return bench.rollback(3) if action == "promote" else bench.promote(3, 2)

    if action == "rollback":
        bench.promote(3, 2)
    kept = undone = 0
    for step in range(1, 1000, stride):

        def work(step: int = step) -> None:
            die_at(step)
            forth()

        code = in_child(work)
        seen = bench.production()
        if code == 0:
            assert seen == after
            return {"kept": kept, "undone": undone}
        assert code == -signal.SIGKILL, code
        assert seen in (before, after)
        kept, undone = kept + (seen == after), undone + (seen == before)
        if seen == after:
            assert back()
        elif step % 5 == 0:  # the next command works; at other steps it is the next victim
            assert forth()
            assert back()
    raise AssertionError("the action never finished")


def kill_at_random(bench: Bench, rounds: int) -> dict[str, int]:
    """Kill a process that promotes and rolls back without pause, at random moments."""
    bench.prepare()
    draw = random.Random(5)
    for _ in range(rounds):
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                while True:
                    os.write(write_end, b".")
                    if bench.production() == 3:
                        bench.rollback(3)
                    else:
                        bench.promote(3, 2)
            finally:
                os._exit(1)
        for _ in range(draw.randint(2, 3)):  # dots, not seconds: a busy machine moves as often
            assert os.read(read_end, 1)
        time.sleep(draw.random() * 0.05)
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        os.close(read_end)
        os.close(write_end)
        assert bench.production() in (2, 3)
    with bench.open() as ledger:
        moves = len(ledger.history(MODEL))
    return {"moves": moves}


def race(work: Callable[[int], str], num_racers: int = NUM_RACERS) -> list[str]:
    """Run ``work`` in processes that start together; return what each said."""
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    start = context.Barrier(num_racers)

    def runner(index: int) -> None:
        start.wait(30)
        try:
            answers.put(work(index))
        except PromotionConflict as error:
            answers.put(f"conflict: {error}")
        except SluiceError as error:
            answers.put(f"failed: {error!r}")

    racers = [context.Process(target=runner, args=(i,)) for i in range(num_racers)]
    for racer in racers:
        racer.start()
    said = [answers.get(timeout=60) for _ in racers]
    for racer in racers:
        racer.join(30)
    return sorted(said)


def race_to_promote(bench: Bench, num_promoters: int) -> list[str]:
    """Let promoters pass every check against the same production, then move at once."""
    with bench.open() as ledger:
        numbers = [register_sample(ledger, bench.store, salt=100 + i) for i in range(num_promoters)]
    checked = multiprocessing.get_context("fork").Barrier(num_promoters)
    verify = loading.require_loadable

    def verify_and_wait(*arguments: Any) -> None:
        verify(*arguments)
        checked.wait(60)

    loading.require_loadable = verify_and_wait

    def work(index: int) -> str:
        return "won" if bench.promote(numbers[index], None) else "unmoved"

    said = race(work, num_promoters)
    assert bench.production() is not None
    return said


def kill_publisher(bench: Bench, received: Path, stride: int) -> dict[str, list[str]]:
    """Kill a publisher at its steps; return what its consumer received, and the history.

    The consumer writes each key to a file before it answers, as one that did its work.
    """
    bench.prepare()

    def deliver(event: HistoryEvent) -> Delivery:
        with received.open("a") as file:
            file.write(f"{event.key} {event.entry.id}\n")
        return Delivery(ok=True, reason="")

    def publish() -> None:
        with bench.open() as ledger:
            ledger.publish(MODEL, "board", deliver)

    for step in range(1, 1000, stride):

        def work(step: int = step) -> None:
            die_at(step)
            publish()

        if in_child(work) == 0:
            break
    publish()
    bench.production()
    with bench.open() as ledger:
        history = [str(entry.id) for entry in ledger.history(MODEL)]
    return {"received": received.read_text().splitlines(), "history": history}


def race_to_register(bench: Bench) -> dict[str, list[str]]:
    """Open a registry that is not there, file the same and different candidates, and decide."""

    def same(_: int) -> str:
        with bench.open() as ledger:
            return str(ledger.register(MODEL, sample_lineage(bench.store, salt=1), []).created)

    def different(index: int) -> str:
        with bench.open() as ledger:
            filed = ledger.register(MODEL, sample_lineage(bench.store, salt=50 + index), [])
            return f"{filed.version.number:02d}"

    def decide(index: int) -> str:
        outcome = "PROMOTE" if index % 2 else "REJECT"
        with bench.open() as ledger:
            mine = promotion_receipt("d" * 64, outcome=outcome)
            return ledger.decide("another", mine.subject, lambda _: mine).digest

    def attempt(index: int) -> str:
        asked = promotion_receipt(f"{index:064x}")

        def judge(earlier: Sequence[Receipt]) -> Receipt:
            return asked.model_copy(update={"evidence": {"attempt": len(earlier) + 1}})

        with bench.open() as ledger:
            return f"{ledger.decide('third', asked.subject, judge).evidence['attempt']:02d}"

    return {
        "same": race(same),
        "different": race(different),
        "decide": race(decide),
        "attempt": race(attempt),
    }


def main() -> None:
    mode, url, artifacts, number = sys.argv[1:5]
    bench = Bench(url, Path(artifacts))
    if mode in ("promote", "rollback"):
        result: object = kill_everywhere(bench, mode, int(number))
    elif mode == "random":
        result = kill_at_random(bench, rounds=8)
    elif mode == "race":
        result = race_to_promote(bench, int(number))
    elif mode == "publish":
        result = kill_publisher(bench, Path(artifacts).with_name("received"), int(number))
    else:
        result = race_to_register(bench)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
