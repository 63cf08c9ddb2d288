"""Kill or race processes that use the ledger: ``python -m ... MODE URL ARTIFACTS NUMBER``.

NUMBER is the number of racing promoters, or the stride of the steps at which a process is killed.
This is a separate program because it forks, and the test process has threads. It prints the
result as JSON.
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


class RegistryDriver:
    """A registry, and the operations of processes on it."""

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
        """Check that the registry is consistent; return the version in production."""
        with self.open() as ledger:
            findings = ledger.verify(None, store=self.store)
            assert not findings, findings
            version = ledger.production(MODEL)
        return None if version is None else version.number

    def prepare(self) -> None:
        with self.open() as ledger:
            promote_chain(ledger, self.store, 2)
            register_sample(
                ledger, self.store, salt=3, reference=ledger.version(MODEL, 2).candidate
            )


def die_at(step: int) -> None:
    """Make this process kill itself at its ``step``-th external operation.

    External operations: each statement, each commit, each return of a connection to the pool (the
    first moment after a commit), each artifact read. Between two of them nothing outside this
    process changes.
    """
    count = 0

    def count_operation(*_: object, **__: object) -> None:
        nonlocal count
        count += 1
        if count == step:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(Engine, "before_cursor_execute", count_operation)
    event.listen(Engine, "commit", count_operation)
    event.listen(Pool, "checkin", count_operation)
    read = ArtifactStore.get

    def get(self: ArtifactStore, digest: str) -> bytes:
        count_operation()
        return read(self, digest)

    ArtifactStore.get = get  # type: ignore[method-assign]


def run_in_child(work: Callable[[], object]) -> int:
    """Run ``work`` in a forked process; return its exit code, or minus its fatal signal."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_everywhere(driver: RegistryDriver, action: str, stride: int) -> dict[str, int]:
    """Kill a promotion (2 to 3) or rollback (3 to 2) at every ``stride``-th of its steps."""
    driver.prepare()
    before, after = (2, 3) if action == "promote" else (3, 2)

    def change() -> bool:
        return driver.promote(3, 2) if action == "promote" else driver.rollback(3)

    def revert() -> bool:
        return driver.rollback(3) if action == "promote" else driver.promote(3, 2)

    if action == "rollback":
        driver.promote(3, 2)
    kept = undone = 0
    for step in range(1, 1000, stride):

        def work(step: int = step) -> None:
            die_at(step)
            change()

        code = run_in_child(work)
        production = driver.production()
        if code == 0:
            assert production == after
            return {"kept": kept, "undone": undone}
        assert code == -signal.SIGKILL, code
        assert production in (before, after)
        kept, undone = kept + (production == after), undone + (production == before)
        if production == after:
            assert revert()
        elif step % 5 == 0:  # the next command succeeds; at other steps it is killed
            assert change()
            assert revert()
    raise AssertionError("the action never finished")


def kill_at_random(driver: RegistryDriver, rounds: int) -> dict[str, int]:
    """Kill a process at random moments while it promotes and rolls back continuously."""
    driver.prepare()
    rng = random.Random(5)
    for _ in range(rounds):
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                while True:
                    os.write(write_end, b".")
                    if driver.production() == 3:
                        driver.rollback(3)
                    else:
                        driver.promote(3, 2)
            finally:
                os._exit(1)
        for _ in range(rng.randint(2, 3)):  # counts moves, not seconds: independent of the load
            assert os.read(read_end, 1)
        time.sleep(rng.random() * 0.05)
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        os.close(read_end)
        os.close(write_end)
        assert driver.production() in (2, 3)
    with driver.open() as ledger:
        moves = len(ledger.history(MODEL))
    return {"moves": moves}


def race(work: Callable[[int], str], num_racers: int = NUM_RACERS) -> list[str]:
    """Run ``work`` in processes that start at the same time; return their sorted results."""
    context = multiprocessing.get_context("fork")
    result_queue = context.Queue()
    start = context.Barrier(num_racers)

    def runner(index: int) -> None:
        start.wait(30)
        try:
            result_queue.put(work(index))
        except PromotionConflict as error:
            result_queue.put(f"conflict: {error}")
        except SluiceError as error:
            result_queue.put(f"failed: {error!r}")

    racers = [context.Process(target=runner, args=(i,)) for i in range(num_racers)]
    for racer in racers:
        racer.start()
    results = [result_queue.get(timeout=60) for _ in racers]
    for racer in racers:
        racer.join(30)
    return sorted(results)


def race_to_promote(driver: RegistryDriver, num_promoters: int) -> list[str]:
    """Let all promoters pass their checks before one of them moves the pointer."""
    with driver.open() as ledger:
        numbers = [
            register_sample(ledger, driver.store, salt=100 + i) for i in range(num_promoters)
        ]
    checked = multiprocessing.get_context("fork").Barrier(num_promoters)
    verify = loading.require_loadable

    def verify_and_wait(*arguments: Any) -> None:
        verify(*arguments)
        checked.wait(60)

    loading.require_loadable = verify_and_wait

    def work(index: int) -> str:
        return "won" if driver.promote(numbers[index], None) else "unmoved"

    results = race(work, num_promoters)
    assert driver.production() is not None
    return results


def kill_publisher(driver: RegistryDriver, received: Path, stride: int) -> dict[str, list[str]]:
    """Kill a publisher at its steps; return what its consumer received, and the history.

    The consumer writes each key to a file before it acknowledges the event.
    """
    driver.prepare()

    def deliver(event: HistoryEvent) -> Delivery:
        with received.open("a") as file:
            file.write(f"{event.key} {event.entry.id}\n")
        return Delivery(ok=True, reason="")

    def publish() -> None:
        with driver.open() as ledger:
            ledger.publish(MODEL, "board", deliver)

    for step in range(1, 1000, stride):

        def work(step: int = step) -> None:
            die_at(step)
            publish()

        if run_in_child(work) == 0:
            break
    publish()
    driver.production()
    with driver.open() as ledger:
        history = [str(entry.id) for entry in ledger.history(MODEL)]
    return {"received": received.read_text().splitlines(), "history": history}


def race_to_register(driver: RegistryDriver) -> dict[str, list[str]]:
    """Race to create the registry, to register equal and different candidates, and to decide."""

    def same(_: int) -> str:
        with driver.open() as ledger:
            return str(ledger.register(MODEL, sample_lineage(driver.store, salt=1), []).created)

    def different(index: int) -> str:
        with driver.open() as ledger:
            registered = ledger.register(MODEL, sample_lineage(driver.store, salt=50 + index), [])
            return f"{registered.version.number:02d}"

    def decide(index: int) -> str:
        outcome = "PROMOTE" if index % 2 else "REJECT"
        with driver.open() as ledger:
            proposed = promotion_receipt("d" * 64, outcome=outcome)
            return ledger.decide("another", proposed.subject, lambda _: proposed).digest

    def attempt(index: int) -> str:
        proposed = promotion_receipt(f"{index:064x}")

        def decide_attempt(earlier: Sequence[Receipt]) -> Receipt:
            return proposed.model_copy(update={"evidence": {"attempt": len(earlier) + 1}})

        with driver.open() as ledger:
            decision = ledger.decide("third", proposed.subject, decide_attempt)
        return f"{decision.evidence['attempt']:02d}"

    return {
        "same": race(same),
        "different": race(different),
        "decide": race(decide),
        "attempt": race(attempt),
    }


def main() -> None:
    mode, url, artifacts, number = sys.argv[1:5]
    driver = RegistryDriver(url, Path(artifacts))
    if mode in ("promote", "rollback"):
        result: object = kill_everywhere(driver, mode, int(number))
    elif mode == "random":
        result = kill_at_random(driver, rounds=8)
    elif mode == "race":
        result = race_to_promote(driver, int(number))
    elif mode == "publish":
        result = kill_publisher(driver, Path(artifacts).with_name("received"), int(number))
    else:
        result = race_to_register(driver)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
