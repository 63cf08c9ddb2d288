"""Detects loader workers that draw the same random numbers."""

from collections.abc import Sequence
from itertools import combinations

from sluice.base.pluralize import pluralize
from sluice.trace.finding import NoThresholds, Rule, TraceFinding
from sluice.trace.records.environment import WorkerRandomnessRecord
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.loaders import loader_epochs

_PROCESS_GENERATORS = ("torch", "random", "numpy.random")
"""Generators of the worker process, which torch seeds differently in each worker. A worker_init_fn
may seed them again."""

_OWNED_GENERATOR_CAUSE = (
    "a worker is a copy of the process and keeps its generators unless worker_init_fn seeds them."
)
_OWNED_GENERATOR_FIX = (
    "Use torch's random numbers, which torch seeds differently in each worker, or seed the "
    "generator in worker_init_fn from torch.initial_seed()."
)
_PROCESS_GENERATOR_CAUSE = (
    "torch seeds this generator differently in each worker and epoch, but the program seeds it "
    "again with the same number, in the workers or before each epoch."
)
_PROCESS_GENERATOR_FIX = (
    "Seed the program once, before the first epoch. In worker_init_fn and the dataset, do not seed "
    "this generator, or use torch.utils.data.get_worker_info().seed % 2**32."
)


def _draws_numbers(record: WorkerRandomnessRecord) -> bool:
    """Whether a batch draws numbers from the generator without seeding it again."""
    return record.after != record.before and record.reseeded != "yes"


def _draw_equal_numbers(first: WorkerRandomnessRecord, second: WorkerRandomnessRecord) -> bool:
    """Whether two workers draw the same numbers for their first batches."""
    if first.before != second.before or not (_draws_numbers(first) and _draws_numbers(second)):
        return False
    # If it is unknown whether a generator was seeded again, the states after the batch must be
    # equal, too.
    return first.after == second.after or {first.reseeded, second.reseeded} == {"no"}


def _draws_in_second_batch(records: Sequence[WorkerRandomnessRecord], worker: int) -> bool:
    """Whether a worker also draws numbers for its second batch.

    False for a worker that draws all its random numbers in the first batch, or that seeds the
    generator for each row.
    """
    return any(r.worker == worker and r.batch == 2 and _draws_numbers(r) for r in records)


def _find_copied_workers(records: Sequence[WorkerRandomnessRecord]) -> frozenset[int]:
    """Return the workers of one epoch that draw the same numbers as another worker."""
    first_batches = [record for record in records if record.batch == 1]
    return frozenset(
        record.worker
        for pair in combinations(first_batches, 2)
        if _draw_equal_numbers(*pair)
        for record in pair
    )


def _describe_source(source: str) -> str:
    if source in _PROCESS_GENERATORS:
        return f"its workers draw from {source}"
    owner = "collate_fn" if source.startswith("collate_fn") else "the dataset"
    return f"{owner} contains a generator ({source})"


def _repeats_epochs(by_epoch: dict[int, list[WorkerRandomnessRecord]]) -> bool:
    """Whether every epoch starts with the same state in the same worker, and draws from it."""
    first_batches = [[r for r in records if r.batch == 1] for records in by_epoch.values()]
    states = {tuple(sorted((r.worker, r.before) for r in records)) for records in first_batches}
    return (
        len(first_batches) > 1
        and all(first_batches)
        and len(states) == 1
        and all(_draws_numbers(r) for records in first_batches for r in records)
    )


def _detect_copied_stream(
    rule: Rule[NoThresholds], trace: Trace, loader: int
) -> TraceFinding | None:
    """Detect workers that yield the same batches of a stream.

    Batches are compared and not random numbers, because workers that each yield another part of the
    stream may draw equal numbers.
    """
    records = [r for r in trace.workers if r.loader == loader and r.content]
    first_epoch = min((r.epoch for r in records), default=0)
    contents = {(r.worker, r.batch): r.content for r in records if r.epoch == first_epoch}
    workers_by_content: dict[tuple[int, int], list[int]] = {}
    for worker in sorted({worker for worker, _ in contents}):
        first, second = contents.get((worker, 1)), contents.get((worker, 2))
        if first is not None and second is not None and first != second:
            workers_by_content.setdefault((first, second), []).append(worker)
    copied_workers = max(workers_by_content.values(), key=len, default=[])
    if len(copied_workers) < 2:
        return None
    num_workers = len({worker for worker, _ in contents})
    epoch_steps = {e.epoch: e.step for e in loader_epochs(trace, loader)}
    return rule.finding(
        severity="error",
        step=epoch_steps.get(first_epoch, 0) + 1,
        what=f"Loader {loader}: {len(copied_workers)} of {num_workers} workers yield the same "
        "batches of a stream, row for row.",
        cause="A worker is a copy of the process: it has the same generator, or reads the whole "
        "stream instead of its part. The network receives every row once per worker.",
        fix="Call info = torch.utils.data.get_worker_info() in __iter__. Yield every "
        "info.num_workers-th row, starting at row info.id, and seed generators with info.seed.",
        num_copied=len(copied_workers),
        num_workers=num_workers,
        num_epochs=len({r.epoch for r in records}),
    )


def _judge(rule: Rule[NoThresholds], trace: Trace) -> tuple[TraceFinding, ...]:
    streams = {loader.index for loader in trace.loaders if loader.is_stream}
    stream_findings = [_detect_copied_stream(rule, trace, loader) for loader in sorted(streams)]
    findings = [finding for finding in stream_findings if finding is not None]
    sources = dict.fromkeys((r.loader, r.source) for r in trace.workers if r.loader not in streams)
    for loader, source in sources:
        records = [r for r in trace.workers if (r.loader, r.source) == (loader, source)]
        by_epoch: dict[int, list[WorkerRandomnessRecord]] = {}
        for record in records:
            by_epoch.setdefault(record.epoch, []).append(record)
        first_epoch = min(by_epoch)
        copied_workers = _find_copied_workers(by_epoch[first_epoch])
        continuing_workers = [
            w for w in copied_workers if _draws_in_second_batch(by_epoch[first_epoch], w)
        ]
        repeats_epochs = _repeats_epochs(by_epoch)
        draws_in_second_batch = any(
            _draws_in_second_batch(records, w) for w in {r.worker for r in records}
        )
        if not copied_workers and not (repeats_epochs and draws_in_second_batch):
            continue
        epoch_steps = {e.epoch: e.step for e in loader_epochs(trace, loader)}
        num_workers = len({r.worker for r in by_epoch[first_epoch]})
        epochs_text = (
            f"; all {len(by_epoch)} epochs start with the same numbers" if repeats_epochs else ""
        )
        workers_text = (
            f"{len(copied_workers)} of {num_workers} workers draw the same random numbers from it"
            if copied_workers
            else f"it is reset at every epoch in {pluralize(num_workers, 'worker')}"
        )
        is_process_generator = source in _PROCESS_GENERATORS
        reason = _PROCESS_GENERATOR_CAUSE if is_process_generator else _OWNED_GENERATOR_CAUSE
        findings.append(
            rule.finding(
                severity="error" if len(continuing_workers) > 1 else "confirm",
                step=epoch_steps.get(first_epoch if copied_workers else sorted(by_epoch)[1], 0) + 1,
                what=f"Loader {loader}: {_describe_source(source)}, and {workers_text}"
                f"{epochs_text}.",
                cause="The augmentation of one worker equals that of another worker or epoch: "
                + reason,
                fix=_PROCESS_GENERATOR_FIX if is_process_generator else _OWNED_GENERATOR_FIX,
                num_copied=len(copied_workers),
                num_workers=num_workers,
                num_epochs=len(by_epoch),
            )
        )
    return tuple(findings)


DUPLICATE_WORKER_SEEDS = Rule(
    name="every worker draws different random numbers",
    fault="duplicate worker seeds",
    priority=420,
    requires="One of: a generator of the dataset, of collate_fn or of the worker process, recorded "
    "in two workers or in two epochs; two batches of a stream, recorded in each of two workers.",
    contradicted_by="A state of the generator that differs between workers, or between epochs, "
    "when they load their first batch.",
    abstains="No numbers are drawn from the generator; each row seeds it; the dataset is a stream "
    "whose workers agree on an order and yield different rows of it; or workers are spawned, not "
    "forked.",
    settings=NoThresholds(),
    judge=_judge,
)
