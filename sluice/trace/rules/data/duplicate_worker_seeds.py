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

_OBJECT_GENERATOR_CAUSE = (
    "each worker starts as a copy of the main process, and by default new workers start in every "
    "epoch. So a generator of the dataset or of collate_fn starts with the same state in each of "
    "them, unless worker_init_fn seeds it differently for each worker and epoch."
)
_OBJECT_GENERATOR_FIX = (
    "Use torch's global generator, which torch seeds differently in each worker, or seed this "
    "generator in worker_init_fn with torch.initial_seed() % 2**32."
)
_PROCESS_GENERATOR_CAUSE = (
    "torch seeds this generator differently in each worker and epoch, but the program seeds it "
    "again with the same number, in the workers or before each epoch."
)
_PROCESS_GENERATOR_FIX = (
    "Seed the program once, before the first epoch. Do not seed this generator in worker_init_fn "
    "or in the dataset; if you must, use torch.utils.data.get_worker_info().seed % 2**32 as seed."
)


def _draws_without_seeding(record: WorkerRandomnessRecord) -> bool:
    """Whether loading a batch draws numbers from the generator and does not seed it again."""
    return record.after != record.before and record.reseeded != "yes"


def _draw_equal_numbers(first: WorkerRandomnessRecord, second: WorkerRandomnessRecord) -> bool:
    """Whether two workers draw the same numbers for their first batches."""
    if first.before != second.before or not (
        _draws_without_seeding(first) and _draws_without_seeding(second)
    ):
        return False
    # If it is unknown whether a generator was seeded again, the states after the batch must be
    # equal, too.
    return first.after == second.after or {first.reseeded, second.reseeded} == {"no"}


def _draws_in_second_batch(records: Sequence[WorkerRandomnessRecord], worker: int) -> bool:
    """Whether a worker also draws numbers for its second batch.

    False for a worker that draws all its random numbers in the first batch, or that seeds the
    generator for each row.
    """
    return any(r.worker == worker and r.batch == 2 and _draws_without_seeding(r) for r in records)


def _find_duplicate_workers(records: Sequence[WorkerRandomnessRecord]) -> frozenset[int]:
    """Return the workers of one epoch that draw the same numbers as another worker does."""
    first_batches = [record for record in records if record.batch == 1]
    return frozenset(
        record.worker
        for pair in combinations(first_batches, 2)
        if _draw_equal_numbers(*pair)
        for record in pair
    )


def _describe_generator(path: str) -> str:
    if path in _PROCESS_GENERATORS:
        return f"its workers draw from the generator of {path}"
    owner = "collate_fn" if path.startswith("collate_fn") else "the dataset"
    return f"{owner} contains a generator ({path})"


def _is_reset_every_epoch(
    records_by_epoch: dict[int, list[WorkerRandomnessRecord]],
) -> bool:
    """Whether each generator has the same state at the start of every epoch, and is used."""
    first_batches = [[r for r in records if r.batch == 1] for records in records_by_epoch.values()]
    states = {tuple(sorted((r.worker, r.before) for r in records)) for records in first_batches}
    return (
        len(first_batches) > 1
        and all(first_batches)
        and len(states) == 1
        and all(_draws_without_seeding(r) for records in first_batches for r in records)
    )


def _detect_duplicate_stream_batches(
    rule: Rule[NoThresholds], trace: Trace, loader: int
) -> TraceFinding | None:
    """Detect workers that yield the same batches of a stream.

    Batches are compared instead of random numbers. Workers that yield different parts of a stream
    may draw equal numbers on purpose, to shuffle the whole stream in the same order.
    """
    records = [r for r in trace.workers if r.loader == loader and r.content]
    first_epoch = min((r.epoch for r in records), default=0)
    batch_fingerprints = {(r.worker, r.batch): r.content for r in records if r.epoch == first_epoch}
    workers_by_batches: dict[tuple[int, int], list[int]] = {}
    for worker in sorted({worker for worker, _ in batch_fingerprints}):
        first_batch = batch_fingerprints.get((worker, 1))
        second_batch = batch_fingerprints.get((worker, 2))
        # A worker with two equal batches is not compared. Its stream may repeat one batch, so
        # workers yield equal batches even if they read different parts.
        if first_batch is not None and second_batch is not None and first_batch != second_batch:
            workers_by_batches.setdefault((first_batch, second_batch), []).append(worker)
    duplicate_workers = max(workers_by_batches.values(), key=len, default=[])
    if len(duplicate_workers) < 2:
        return None
    num_workers = len({worker for worker, _ in batch_fingerprints})
    step_by_epoch = {e.epoch: e.step for e in loader_epochs(trace, loader)}
    return rule.finding(
        severity="error",
        step=step_by_epoch.get(first_epoch, 0) + 1,
        what=f"Loader {loader}: {len(duplicate_workers)} of {num_workers} workers yield the same "
        "batches of a stream, row for row.",
        cause="Workers are copies of the main process: their generators have the same state, or "
        "each worker reads the whole stream instead of its part. The network receives the same "
        "rows several times.",
        fix="Call info = torch.utils.data.get_worker_info() in __iter__. Yield every "
        "info.num_workers-th row, starting at row info.id, and seed generators with info.seed.",
        num_duplicate_workers=len(duplicate_workers),
        num_workers=num_workers,
        num_epochs=len({r.epoch for r in records}),
    )


def _judge(rule: Rule[NoThresholds], trace: Trace) -> tuple[TraceFinding, ...]:
    stream_loaders = {loader.index for loader in trace.loaders if loader.is_stream}
    findings = [
        finding
        for loader in sorted(stream_loaders)
        if (finding := _detect_duplicate_stream_batches(rule, trace, loader)) is not None
    ]
    for loader, generator_path in dict.fromkeys((r.loader, r.source) for r in trace.workers):
        if loader in stream_loaders:
            continue
        records = [r for r in trace.workers if (r.loader, r.source) == (loader, generator_path)]
        records_by_epoch: dict[int, list[WorkerRandomnessRecord]] = {}
        for record in records:
            records_by_epoch.setdefault(record.epoch, []).append(record)
        first_epoch = min(records_by_epoch)
        first_epoch_records = records_by_epoch[first_epoch]
        duplicate_workers = _find_duplicate_workers(first_epoch_records)
        num_with_second_draw = sum(
            _draws_in_second_batch(first_epoch_records, w) for w in duplicate_workers
        )
        is_reset = _is_reset_every_epoch(records_by_epoch)
        has_second_draw = any(_draws_in_second_batch(records, r.worker) for r in records)
        if not duplicate_workers and not (is_reset and has_second_draw):
            continue
        step_by_epoch = {e.epoch: e.step for e in loader_epochs(trace, loader)}
        first_fault_epoch = first_epoch if duplicate_workers else sorted(records_by_epoch)[1]
        num_workers = len({r.worker for r in first_epoch_records})
        epochs_text = (
            f"; all {len(records_by_epoch)} epochs start with the same numbers" if is_reset else ""
        )
        workers_text = (
            f"{len(duplicate_workers)} of {num_workers} workers draw the same numbers from it"
            if duplicate_workers
            else f"its state is reset at every epoch in {pluralize(num_workers, 'worker')}"
        )
        is_process_generator = generator_path in _PROCESS_GENERATORS
        cause = _PROCESS_GENERATOR_CAUSE if is_process_generator else _OBJECT_GENERATOR_CAUSE
        findings.append(
            rule.finding(
                severity="error" if num_with_second_draw > 1 else "confirm",
                step=step_by_epoch.get(first_fault_epoch, 0) + 1,
                what=f"Loader {loader}: {_describe_generator(generator_path)}, and {workers_text}"
                f"{epochs_text}.",
                cause=f"A worker repeats the random numbers of another worker or epoch: {cause}",
                fix=_PROCESS_GENERATOR_FIX if is_process_generator else _OBJECT_GENERATOR_FIX,
                num_duplicate_workers=len(duplicate_workers),
                num_workers=num_workers,
                num_epochs=len(records_by_epoch),
            )
        )
    return tuple(findings)


DUPLICATE_WORKER_SEEDS = Rule(
    name="every worker draws different random numbers",
    fault="duplicate worker seeds",
    priority=420,
    requires="One of: a generator of the dataset, of collate_fn or of the worker process, recorded "
    "in two workers or in two epochs; two batches of a stream, recorded in each of two workers.",
    contradicted_by="Generator states that differ between workers, or between epochs, before the "
    "first batch.",
    abstains="The workers draw no numbers from the generator, or seed it again for each row; the "
    "dataset is a stream that all workers shuffle in the same order, so that each yields "
    "different rows; or the workers are spawned, not forked.",
    settings=NoThresholds(),
    judge=_judge,
)
