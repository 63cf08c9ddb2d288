"""Detects loader workers that draw the same random numbers."""

from collections.abc import Sequence
from itertools import combinations

from sluice.trace.finding import NoThresholds, Rule, TraceFinding
from sluice.trace.records.environment import WorkerRandomnessRecord
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.loaders import loader_epochs

PROCESS_GENERATORS = ("torch", "random", "numpy.random")
"""Generators of the worker process. torch seeds them in each worker; a worker_init_fn may seed
them again."""


def _is_drawn_from(facts: Sequence[WorkerRandomnessRecord]) -> bool:
    """Whether numbers were drawn in the first batch, and more of the same stream in the second."""
    return all(fact.after != fact.before and fact.reseeded != "yes" for fact in facts)


def _are_copies(one: WorkerRandomnessRecord, other: WorkerRandomnessRecord) -> bool:
    if one.before != other.before or not _is_drawn_from((one, other)):
        return False
    # A generator whose seeding is unknown must also have reached the same state.
    return one.after == other.after or {one.reseeded, other.reseeded} == {"no"}


def _advances(facts: Sequence[WorkerRandomnessRecord], worker: int) -> bool:
    """Whether the second batch draws on: a table drawn once, or a seed per row, does not."""
    return any(f.worker == worker and f.batch == 2 and _is_drawn_from((f,)) for f in facts)


def _copied(facts: Sequence[WorkerRandomnessRecord]) -> frozenset[int]:
    """Return the workers of one epoch that draw the same numbers as another worker."""
    firsts = [fact for fact in facts if fact.batch == 1]
    return frozenset(
        fact.worker for pair in combinations(firsts, 2) if _are_copies(*pair) for fact in pair
    )


def _owner(source: str) -> str:
    if source in PROCESS_GENERATORS:
        return f"its workers draw from {source} with equal seeds"
    return f"the dataset contains a generator ({source})"


def _repeats(by_epoch: dict[int, list[WorkerRandomnessRecord]]) -> bool:
    """Whether every epoch starts with the same state in the same worker, and draws from it."""
    firsts = [[f for f in facts if f.batch == 1] for facts in by_epoch.values()]
    states = {tuple(sorted((f.worker, f.before) for f in found)) for found in firsts}
    # A generator that is created with the first batch has no state before it.
    is_known = len(firsts) > 1 and all(firsts)
    return is_known and len(states) == 1 and all(map(_is_drawn_from, firsts))


def _judge_stream(rule: Rule[NoThresholds], trace: Trace, loader: int) -> TraceFinding | None:
    """Compare the batches of a stream: workers that each yield a part may draw equal numbers."""
    facts = [f for f in trace.workers if f.loader == loader and f.content]
    first_epoch = min((f.epoch for f in facts), default=0)
    contents = {(f.worker, f.batch): f.content for f in facts if f.epoch == first_epoch}
    workers_by_content: dict[tuple[int, int], list[int]] = {}
    for worker in sorted({worker for worker, _ in contents}):
        first_batch, second_batch = contents.get((worker, 1)), contents.get((worker, 2))
        if first_batch is not None and second_batch is not None and first_batch != second_batch:
            workers_by_content.setdefault((first_batch, second_batch), []).append(worker)
    copied = max(workers_by_content.values(), key=len, default=[])
    if len(copied) < 2:
        return None
    workers = len({worker for worker, _ in contents})
    epoch_steps = {e.epoch: e.step for e in loader_epochs(trace, loader)}
    return rule.finding(
        severity="error",
        step=epoch_steps.get(first_epoch, 0) + 1,
        what=f"Loader {loader}: {len(copied)} of {workers} workers yield the same batches of a "
        "stream, row for row.",
        cause="A worker is a copy of the process: it has the same generator, or the whole stream "
        "instead of a part. The network sees every row once per worker.",
        fix="Call torch.utils.data.get_worker_info() in __iter__: yield every num_workers-th row "
        "starting at row id, and seed random numbers with its seed.",
        num_copied=len(copied),
        num_workers=workers,
        num_epochs=len({f.epoch for f in facts}),
    )


def _judge(rule: Rule[NoThresholds], trace: Trace) -> tuple[TraceFinding, ...]:
    found = []
    streams = {loader.index for loader in trace.loaders if loader.is_stream}
    found += [
        f for loader in sorted(streams) if (f := _judge_stream(rule, trace, loader)) is not None
    ]
    sources = dict.fromkeys((f.loader, f.source) for f in trace.workers if f.loader not in streams)
    for loader, source in sources:
        facts = [f for f in trace.workers if (f.loader, f.source) == (loader, source)]
        by_epoch: dict[int, list[WorkerRandomnessRecord]] = {}
        for fact in facts:
            by_epoch.setdefault(fact.epoch, []).append(fact)
        first_epoch = min(by_epoch)
        copied = _copied(by_epoch[first_epoch])
        advances = [w for w in copied if _advances(by_epoch[first_epoch], w)]
        repeats = _repeats(by_epoch)
        again = any(_advances(facts, worker) for worker in {f.worker for f in facts})
        if not copied and not (repeats and again):
            continue
        epoch_steps = {e.epoch: e.step for e in loader_epochs(trace, loader)}
        workers = len({f.worker for f in by_epoch[first_epoch]})
        of_epochs = f"; all {len(by_epoch)} epochs start with the same numbers" if repeats else ""
        shared = (
            f"{len(copied)} of {workers} workers draw the same random numbers from it"
            if copied
            else f"its {workers} workers restart with every epoch"
        )
        found.append(
            rule.finding(
                severity="error" if len(advances) > 1 else "confirm",
                step=epoch_steps.get(first_epoch if copied else sorted(by_epoch)[1], 0) + 1,
                what=f"Loader {loader}: {_owner(source)}, and {shared}{of_epochs}.",
                cause="The augmentation of one worker equals that of another worker or epoch: a "
                "worker is a copy of the process and keeps its generators unless worker_init_fn "
                "seeds them.",
                fix="Use torch's random numbers, which each worker seeds itself, or seed the "
                "generator in worker_init_fn from torch.initial_seed().",
                num_copied=len(copied),
                num_workers=workers,
                num_epochs=len(by_epoch),
            )
        )
    return tuple(found)


DUPLICATE_WORKER_SEEDS = Rule(
    name="every worker draws different random numbers",
    fault="duplicate worker seeds",
    priority=420,
    requires="A generator of the dataset or of the worker process, recorded in two workers.",
    contradicted_by="Another state of the generator when a worker loads its first batch.",
    abstains="No numbers are drawn from it, each row seeds it, the dataset is a stream whose "
    "workers agree on an order and yield different rows of it, or workers are spawned and not "
    "forked.",
    settings=NoThresholds(),
    judge=_judge,
)
