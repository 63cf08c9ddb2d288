"""Features of a workload that declares partitions: only changed partitions are computed again.

The context of a partition consists of the neighbouring rows on which its features also depend.
"""

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import pandas as pd
from pydantic import Field

from sluice.assets.resources import ProgressReporter
from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import digest_frame
from sluice.base.errors import IntegrityError, TrainingFailed
from sluice.base.settings import Record
from sluice.cluster.jobs import Emit, JobPool, JobResult, WorkerLost
from sluice.cluster.process_pool import open_process_pool
from sluice.cluster.ray_pool import open_ray_pool
from sluice.cluster.settings import ComputeSettings
from sluice.data.table import TableRecord, load_table, save_table
from sluice.failfast.data.partition_context import check_partition_context
from sluice.findings.user_code import wrap_user_errors
from sluice.workloads.load import load_workload
from sluice.workloads.partitions import FeaturePartitions, Partition, join_partitions
from sluice.workloads.workload import Workload

MIN_POOL_S = 20.0
"""Worker processes are started only if the remaining partitions are expected to take at least this
time [s]. A process takes some seconds to start."""

_PRELOADED_MODULES = ("sluice.workloads.load",)


class StoredPartition(Record):
    """Features of one partition in the artifact store."""

    name: str
    raw: str = Field(description="Digest of the raw rows of the partition and of its context.")
    table: TableRecord | None = Field(description="Features; None if there are no rows.")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSource:
    """Import path and settings from which a worker process builds the workload."""

    path: str
    settings: Mapping[str, object]
    sys_path: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionedFeatures:
    """Features of all partitions."""

    frame: pd.DataFrame
    partitions: tuple[StoredPartition, ...]
    num_reused: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionJob:
    """Computes the features of one partition in a worker process."""

    source: WorkloadSource
    partition: str
    raw: pd.DataFrame
    """Raw rows of the partition and of its context."""

    def __call__(self, emit: Emit) -> pd.DataFrame:
        """Return the features of the rows of the partition, without its context."""
        del emit
        sys.path.extend(folder for folder in self.source.sys_path if folder not in sys.path)
        workload = load_workload(self.source.path, self.source.settings, where=self.source.path)
        return compute_partition(workload, self.partition, self.raw)


def compute_partition(workload: Workload, name: str, raw: pd.DataFrame) -> pd.DataFrame:
    """Return the features of the rows of one partition, without its context.

    Args:
        workload: Workload that declares ``feature_partitions``.
        name: Name of the partition.
        raw: Raw rows of the partition and of its context.

    Raises:
        ContractError: ``compute_features`` raised an error, or the feature frame lacks the column
            of the partitions.
    """
    with wrap_user_errors(f"compute_features of the workload (partition '{name}')"):
        frame = workload.compute_features(raw.copy())
    return _declared_partitions(workload).own_rows(name, frame)


def compute_partitioned_features(
    workload: Workload,
    raw: pd.DataFrame,
    previous: Sequence[StoredPartition],
    *,
    source: WorkloadSource,
    compute: ComputeSettings,
    store: ArtifactStore,
    progress: ProgressReporter,
) -> PartitionedFeatures:
    """Return the features of all partitions. Unchanged partitions are read from the store.

    A check computes the features of up to three new partitions a second time, with a larger
    context. This must not change the features.

    Args:
        workload: Workload that declares ``feature_partitions``.
        raw: Raw rows.
        previous: Partitions that the same workload, settings and code computed before.
        source: Source from which workers build the workload.
        compute: Machines. This process computes the checked partitions. Worker processes of this
            machine, or of the Ray cluster at ``address``, compute the other partitions. This
            process also computes the others if ``workers`` is 1, or if that will probably take
            less than ``MIN_POOL_S``.
        store: Artifact store.
        progress: Receives the number of finished partitions.

    Raises:
        ContractError: The partitions are not valid, ``compute_features`` raised an error, the
            features depend on rows outside of the context, or the partitions have different
            columns.
        TrainingFailed: A worker process was lost too often.
    """
    partitions = _declared_partitions(workload).split(raw, horizon_rows=workload.horizon_rows)
    digests = [digest_frame(raw.iloc[partition.rows]) for partition in partitions]
    previous_by_key = {(partition.name, partition.raw): partition for partition in previous}
    stored_partitions: dict[int, StoredPartition] = {}
    frames: dict[int, pd.DataFrame] = {}
    for index, (partition, digest) in enumerate(zip(partitions, digests, strict=True)):
        previous_partition = previous_by_key.get((partition.name, digest))
        # A missing or damaged file is no error: the partition is computed again.
        with contextlib.suppress(IntegrityError):
            if previous_partition is not None:
                frames[index] = (
                    raw.iloc[:0]
                    if previous_partition.table is None
                    else load_table(previous_partition.table, store)
                )
                stored_partitions[index] = previous_partition
    num_reused = len(stored_partitions)
    missing_indexes = [index for index in range(len(partitions)) if index not in stored_partitions]
    for index, features in _compute_missing(
        workload, raw, partitions, missing_indexes, source, compute
    ):
        name = partitions[index].name
        frames[index] = features
        table = save_table(features, store) if len(features) else None
        stored_partitions[index] = StoredPartition(name=name, raw=digests[index], table=table)
        progress(f"features of {name}", num_done=len(stored_partitions), total=len(partitions))
    indexes = range(len(partitions))
    return PartitionedFeatures(
        frame=join_partitions(raw, [(partitions[n], frames[n]) for n in indexes]),
        partitions=tuple(stored_partitions[n] for n in indexes),
        num_reused=num_reused,
    )


def _compute_missing(
    workload: Workload,
    raw: pd.DataFrame,
    partitions: Sequence[Partition],
    missing_indexes: Sequence[int],
    source: WorkloadSource,
    compute: ComputeSettings,
) -> Iterator[tuple[int, pd.DataFrame]]:
    """Yield index and features of every missing partition.

    The first, middle and last missing partitions come first, because they are checked.
    """
    if not missing_indexes:
        return

    def compute_here(partition: Partition) -> pd.DataFrame:
        return compute_partition(workload, partition.name, raw.iloc[partition.rows])

    widened_partitions = _declared_partitions(workload).split(
        raw, horizon_rows=workload.horizon_rows, is_widened=True
    )
    checked_indexes = sorted(
        {missing_indexes[0], missing_indexes[len(missing_indexes) // 2], missing_indexes[-1]}
    )
    start_s = time.perf_counter()
    for index in checked_indexes:
        features = compute_here(partitions[index])
        check_partition_context(
            workload, partitions[index].name, features, compute_here(widened_partitions[index])
        )
        yield index, features
    # The features of each checked partition were computed twice.
    seconds_per_partition = (time.perf_counter() - start_s) / (2 * len(checked_indexes))
    unchecked_indexes = [index for index in missing_indexes if index not in checked_indexes]
    if compute.workers == 1 or seconds_per_partition * len(unchecked_indexes) < MIN_POOL_S:
        for index in unchecked_indexes:
            yield index, compute_here(partitions[index])
        return
    with _open_pool(compute, len(unchecked_indexes)) as pool:
        waiting_indexes, num_running = list(reversed(unchecked_indexes)), 0
        while waiting_indexes or num_running:
            while waiting_indexes and pool.has_capacity():
                partition = partitions[waiting_indexes[-1]]
                rows = raw.iloc[partition.rows]
                job = PartitionJob(source=source, partition=partition.name, raw=rows)
                pool.submit(waiting_indexes.pop(), job)
                num_running += 1
            match pool.next_message():
                case JobResult(key=int(index), result=pd.DataFrame() as features):
                    num_running -= 1
                    yield index, features
                case WorkerLost(key=int(index), will_retry=False) as lost:
                    raise TrainingFailed(
                        f"Features of partition '{partitions[index].name}': its "
                        f"{lost.description}, {lost.num_times_lost} times in total.",
                        cause=lost.cause,
                        fix="If memory is short, lower workers or divide the rows into smaller "
                        "partitions. To debug an error, set workers to 1: the partitions are then "
                        "computed in the process of the run.",
                    )


def _open_pool(compute: ComputeSettings, num_jobs: int) -> AbstractContextManager[JobPool]:
    workers = num_jobs if compute.workers is None else min(num_jobs, compute.workers)
    if compute.address is None:
        return open_process_pool(compute, max_workers=workers, imports=_PRELOADED_MODULES)
    return open_ray_pool(compute, max_workers=workers, imports=_PRELOADED_MODULES, folders=())


def _declared_partitions(workload: Workload) -> FeaturePartitions:
    assert workload.feature_partitions is not None, "the caller checks the declaration"
    return workload.feature_partitions
