"""Does every worker of a loader draw random numbers of its own?"""

from collections.abc import Sequence
from itertools import combinations

from sluice.trace.evidence.surroundings import WorkerFact
from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.loaders import epochs_of

OF_THE_PROCESS = ("torch", "random", "numpy.random")
"""Torch seeds these in each worker; a worker_init_fn may do so again."""


def _is_drawn_from(facts: Sequence[WorkerFact]) -> bool:
    """Numbers were drawn in the first batch, and more of the same stream in the second."""
    return all(fact.after != fact.before and fact.reseeded != "yes" for fact in facts)


def _are_copies(one: WorkerFact, other: WorkerFact) -> bool:
    if one.before != other.before or not _is_drawn_from((one, other)):
        return False
    # What cannot tell whether it was seeded anew must have come to the same state, too.
    return one.after == other.after or {one.reseeded, other.reseeded} == {"no"}


def _advances(facts: Sequence[WorkerFact], worker: int) -> bool:
    """The second batch drew on: a table drawn once, or a seed for each row, does not."""
    return any(f.worker == worker and f.batch == 2 and _is_drawn_from((f,)) for f in facts)


def _copied(facts: Sequence[WorkerFact]) -> frozenset[int]:
    """Return the workers of one epoch that have the same numbers as another one."""
    firsts = [fact for fact in facts if fact.batch == 1]
    return frozenset(
        fact.worker for pair in combinations(firsts, 2) if _are_copies(*pair) for fact in pair
    )


def _owner(source: str) -> str:
    if source in OF_THE_PROCESS:
        return f"its workers draw from {source}, as they were seeded"
    return f"the dataset holds a generator ({source})"


def _repeats(by_epoch: dict[int, list[WorkerFact]]) -> bool:
    """Every epoch begins with the same state in the same worker, and draws from it."""
    firsts = [[f for f in facts if f.batch == 1] for facts in by_epoch.values()]
    states = {tuple(sorted((f.worker, f.before) for f in found)) for found in firsts}
    # A generator that a worker makes with its first batch has none.
    is_known = len(firsts) > 1 and all(firsts)
    return is_known and len(states) == 1 and all(map(_is_drawn_from, firsts))


def _of_stream(rule: Rule, trace: Trace, loader: int) -> Finding | None:
    """Judge a stream by its batches: workers that each give a part of it may draw alike."""
    facts = [f for f in trace.workers if f.loader == loader and f.content]
    first_epoch = min((f.epoch for f in facts), default=0)
    contents = {(f.worker, f.batch): f.content for f in facts if f.epoch == first_epoch}
    given: dict[tuple[int, int], list[int]] = {}
    for worker in sorted({worker for worker, _ in contents}):
        one, two = contents.get((worker, 1)), contents.get((worker, 2))
        if one is not None and two is not None and one != two:
            given.setdefault((one, two), []).append(worker)
    copied = max(given.values(), key=len, default=[])
    if len(copied) < 2:
        return None
    workers = len({worker for worker, _ in contents})
    begun = {e.epoch: e.step for e in epochs_of(trace, loader)}
    return rule.finding(
        severity="error",
        step=begun.get(first_epoch, 0) + 1,
        what=f"Loader {loader}: {len(copied)} of {workers} workers give the same batches of a "
        "stream, row for row.",
        cause="A worker is a copy of the process with all it holds: the same generator, or the "
        "whole stream instead of a part. What is learned is seen once for each worker.",
        fix="Ask torch.utils.data.get_worker_info() in __iter__: take every num_workers-th row "
        "from row id on, and seed what is drawn with its seed.",
        num_copied=len(copied),
        num_workers=workers,
        num_epochs=len({f.epoch for f in facts}),
    )


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found = []
    streams = {loader.index for loader in trace.loaders if loader.is_stream}
    found += [f for loader in sorted(streams) if (f := _of_stream(rule, trace, loader)) is not None]
    sources = dict.fromkeys((f.loader, f.source) for f in trace.workers if f.loader not in streams)
    for loader, source in sources:
        facts = [f for f in trace.workers if (f.loader, f.source) == (loader, source)]
        by_epoch: dict[int, list[WorkerFact]] = {}
        for fact in facts:
            by_epoch.setdefault(fact.epoch, []).append(fact)
        first_epoch = min(by_epoch)
        copied = _copied(by_epoch[first_epoch])
        advances = [w for w in copied if _advances(by_epoch[first_epoch], w)]
        repeats = _repeats(by_epoch)
        again = any(_advances(facts, worker) for worker in {f.worker for f in facts})
        if not copied and not (repeats and again):
            continue
        begun = {e.epoch: e.step for e in epochs_of(trace, loader)}
        workers = len({f.worker for f in by_epoch[first_epoch]})
        of_epochs = f"; all {len(by_epoch)} epochs begin with the same numbers" if repeats else ""
        shared = (
            f"{len(copied)} of {workers} workers draw the same random numbers from it"
            if copied
            else f"its {workers} workers start anew with every epoch"
        )
        found.append(
            rule.finding(
                severity="error" if len(advances) > 1 else "confirm",
                step=begun.get(first_epoch if copied else sorted(by_epoch)[1], 0) + 1,
                what=f"Loader {loader}: {_owner(source)}, and {shared}{of_epochs}.",
                cause="The noise of one worker is that of every other, or of every epoch: a worker "
                "is a copy of the process with all it holds, and begins as worker_init_fn says.",
                fix="Draw from torch's own random numbers, which each worker seeds by itself, or "
                "seed the generator in worker_init_fn from torch.initial_seed().",
                num_copied=len(copied),
                num_workers=workers,
                num_epochs=len(by_epoch),
            )
        )
    return tuple(found)


WORKER_STREAMS = Rule(
    name="every worker draws random numbers of its own",
    fault="worker streams copied",
    requirement="TRACE-6",
    requires="A generator that the dataset of a loader holds, or one of a worker's process, in two "
    "of its workers.",
    contradicted_by="Another state of the generator when a worker fetches its first batch.",
    abstains="Nothing is drawn from it, each row seeds it, the dataset is a stream whose workers "
    "agree on an order and give different rows of it, or workers are started and not forked.",
    judge=_judge,
)
