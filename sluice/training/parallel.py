"""All units of one candidate, on the cores there are."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait

from sluice.errors import Interrupted, SluiceError
from sluice.training.members import Member
from sluice.training.unit import Clock, Hear, UnitEvent, UnitSpec, find_finished, utc_now
from sluice.training.worker import Worker, answer, stop


def train_members(
    specs: Sequence[UnitSpec],
    *,
    workers: int | None,
    on_event: Hear,
    clock: Clock = utc_now,
) -> tuple[list[Member], int]:
    """Fit all units; return their members in (seed, fold) order and how many were reused.

    Every unit runs on one thread, so the result does not depend on how many run at once. Units
    with most train rows start first. One unit left, or ``workers`` of 1, runs in this process.

    Args:
        specs: The units.
        workers: Processes at a time; None for one per core this process may use.
        on_event: Hears of every unit's progress, in this process.
        clock: Gives the time of log events; other processes use the system's.

    Raises:
        SluiceError: A unit failed; the message names its seed and fold. No other is started,
            finished ones are kept.
        TrainingFailed: A unit's process was killed, or the user's code raised.
        Interrupted: The user stopped it (Ctrl-C); no process is left behind.
    """
    ordered = sorted(specs, key=lambda spec: (spec.seed, spec.fold.fold_id))
    found = [find_finished(spec) for spec in ordered]
    finished: dict[int, Member] = {}
    for index, member in enumerate(found):
        if member is not None:
            finished[index] = member
            on_event(_reused(ordered[index], member))
    reused = len(finished)
    left = [index for index in range(len(ordered)) if index not in finished]
    left.sort(key=lambda index: -len(ordered[index].fold.train))
    count = min(workers or _cores(), len(left))
    with _interruptible(len(ordered), finished):
        if count <= 1:
            for index in left:
                finished[index] = _checked(answer(ordered[index], on_event, clock))
        else:
            _spread(ordered, left, finished, count, on_event)
    return [finished[index] for index in range(len(ordered))], reused


def _spread(
    specs: Sequence[UnitSpec],
    left: Sequence[int],
    finished: dict[int, Member],
    count: int,
    on_event: Hear,
) -> None:
    waiting = list(reversed(left))
    workers: list[Worker] = []
    # By the parent's end of the pipe: the worker and the index of its unit.
    busy: dict[object, tuple[Worker, int]] = {}

    def give(worker: Worker) -> None:
        index = waiting.pop()
        busy[worker.pipe] = (worker, index)
        worker.give(specs[index])

    try:
        for _ in range(count):
            workers.append(Worker.start())
        for worker in workers:
            give(worker)
        while busy:
            for pipe in wait([worker.pipe for worker, _ in busy.values()]):
                worker, index = busy[pipe]
                message = worker.receive()
                if isinstance(message, UnitEvent):
                    on_event(message)
                    continue
                del busy[pipe]
                finished[index] = _checked(message)
                if waiting:
                    give(worker)
    finally:
        stop(workers)


def _checked(result: Member | SluiceError) -> Member:
    if isinstance(result, SluiceError):
        raise result
    return result


@contextmanager
def _interruptible(total: int, finished: dict[int, Member]) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            f"Training was stopped with {len(finished)} of {total} units finished.",
            fix="Run again to go on: finished units are kept, started ones go on from their "
            "last checkpoint.",
        ) from None


def _reused(spec: UnitSpec, member: Member) -> UnitEvent:
    return UnitEvent(
        kind="reused",
        seed=spec.seed,
        fold_id=spec.fold.fold_id,
        epochs_done=member.epochs_run,
        max_epochs=spec.training.max_epochs,
    )


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))  # a container may grant fewer than the machine has
    return os.cpu_count() or 1
