"""Trains all fold runs of a candidate in parallel, on local cores or a Ray cluster."""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from sluice.base.errors import Interrupted, TrainingFailed
from sluice.cluster.jobs import JobPool, JobProgress, JobResult, WorkerLost
from sluice.cluster.process_pool import open_process_pool
from sluice.cluster.ray_pool import open_ray_pool
from sluice.cluster.ray_session import join_ray
from sluice.cluster.settings import ComputeSettings
from sluice.training.device import device_on_ray
from sluice.training.fold_run import Clock, find_finished_member, utc_now
from sluice.training.fold_run_events import FoldRunEvent, OnFoldRunEvent, fold_run_event
from sluice.training.fold_run_job import FoldRunJob, failed_event, fit_fold_run
from sluice.training.fold_run_on_ranks import train_fold_run_on_ranks
from sluice.training.fold_run_spec import FoldRunSpec
from sluice.training.members import Member
from sluice.training.stale_runs import changes_since_stale_run

_PRELOADED_MODULES = ("sluice.training.fold_run_job",)
"""Modules that worker processes import before their first job."""

_MAX_LISTED_CHANGES = 5
"""Maximum number of changed settings that a 'replaces' event lists."""


def train_members(
    specs: Sequence[FoldRunSpec],
    *,
    compute: ComputeSettings,
    on_event: OnFoldRunEvent,
    clock: Clock = utc_now,
) -> tuple[list[Member], int]:
    """Train all fold runs; return their members in (seed, fold) order, and how many were reused.

    Every fold run uses one thread, so the result does not depend on the machine or on the number of
    parallel runs. The fold runs with the most train rows start first. If the process or machine of
    a fold run is lost, the fold run resumes elsewhere from its last checkpoint, up to
    ``compute.retries`` times.

    Where the fold runs are trained depends on ``compute``:

    1. ``ranks_per_training`` above 1: on Ray, one fold run after another, each in this number of
       processes.
    2. With an address or reserved GPUs: on Ray. The device 'auto' is the reserved GPU, or the CPU.
    3. ``workers`` is 1: in this process, so that a debugger can be used.
    4. Otherwise: in processes of this machine, because Ray would cost seconds and half a gigabyte
       without a benefit.

    Worker processes have a fixed hash seed. So code that iterates over sets gives the same result
    in every worker process, but possibly another result in this process (case 3).

    Args:
        specs: The fold runs. On a cluster, their ``runs`` and ``artifacts`` must be shared folders.
        compute: Machines, and the resources that each fold run reserves.
        on_event: Called in this process with every event of a fold run.
        clock: Time of log events in cases 1 and 3. In cases 2 and 4, the system clock is used.

    Raises:
        SluiceError: A fold run failed; the message names its seed and fold. No other fold run is
            started; finished fold runs are kept.
        TrainingFailed: The process of a fold run was lost too often, or user code raised an
            exception.
        SettingsError: The cluster cannot be reached, does not share the folders, or has fewer
            resources than one fold run reserves.
        Interrupted: The user stopped the training (Ctrl-C); all its processes have ended.
    """
    num_ranks = compute.ranks_per_training
    uses_ray = compute.address is not None or compute.gpus_per_worker > 0 or num_ranks > 1
    specs = [dataclasses.replace(spec, num_ranks=num_ranks) for spec in specs]
    specs = [_resolve_for_ray(spec, compute) if uses_ray else spec for spec in specs]
    specs.sort(key=lambda spec: (spec.seed, spec.fold.fold_id))
    finished_members: dict[int, Member] = {}
    for index, spec in enumerate(specs):
        member = find_finished_member(spec)
        if member is not None:
            finished_members[index] = member
            on_event(fold_run_event(spec, "reused", member.epochs_run, member=member))
    num_reused = len(finished_members)
    remaining_indices = [index for index in range(len(specs)) if index not in finished_members]
    remaining_indices.sort(key=lambda index: -len(specs[index].fold.train))
    for index in remaining_indices:
        changes = changes_since_stale_run(specs[index])
        if changes:
            reason = "; ".join(changes[:_MAX_LISTED_CHANGES])
            on_event(fold_run_event(specs[index], "replaces", 0, reason=reason))
            break  # one event is enough: the settings are the same for all fold runs
    with _interruptible(len(specs), finished_members):
        if remaining_indices and num_ranks > 1:
            _fit_on_ranks(
                specs, remaining_indices, finished_members, on_event, compute=compute, clock=clock
            )
        elif not uses_ray and compute.workers == 1:
            for index in remaining_indices:
                finished_members[index] = fit_fold_run(specs[index], on_event, clock)
        elif remaining_indices:
            with _open_pool(
                [specs[index] for index in remaining_indices], compute, uses_ray=uses_ray
            ) as pool:
                _run_in_pool(pool, specs, remaining_indices, finished_members, on_event)
    return [finished_members[index] for index in range(len(specs))], num_reused


def _resolve_for_ray(spec: FoldRunSpec, compute: ComputeSettings) -> FoldRunSpec:
    """Return the fold run with a resolved device and absolute paths, equal on every machine."""
    device = device_on_ray(spec.training.device, gpus_per_worker=compute.gpus_per_worker)
    return dataclasses.replace(
        spec,
        training=spec.training.model_copy(update={"device": device}),
        artifacts=spec.artifacts.absolute(),
        runs=spec.runs.absolute(),
    )


def _fit_on_ranks(
    specs: Sequence[FoldRunSpec],
    remaining_indices: Sequence[int],
    finished_members: dict[int, Member],
    on_event: OnFoldRunEvent,
    *,
    compute: ComputeSettings,
    clock: Clock,
) -> None:
    with join_ray(compute):  # once for all fold runs, because a start of Ray takes seconds
        joined_compute = compute.model_copy(update={"address": None})
        for index in remaining_indices:
            finished_members[index] = train_fold_run_on_ranks(
                specs[index], on_event, compute=joined_compute, clock=clock
            )


def _open_pool(
    specs: Sequence[FoldRunSpec], compute: ComputeSettings, *, uses_ray: bool
) -> AbstractContextManager[JobPool]:
    if not uses_ray:
        return open_process_pool(compute, max_workers=len(specs), imports=_PRELOADED_MODULES)
    folders = sorted({folder for spec in specs for folder in (spec.runs, spec.artifacts)})
    return open_ray_pool(
        compute, max_workers=len(specs), imports=_PRELOADED_MODULES, folders=folders
    )


def _run_in_pool(
    pool: JobPool,
    specs: Sequence[FoldRunSpec],
    remaining_indices: Sequence[int],
    finished_members: dict[int, Member],
    on_event: OnFoldRunEvent,
) -> None:
    pending_indices = list(reversed(remaining_indices))
    epochs_done = dict.fromkeys(remaining_indices, 0)
    ended_indices: set[int] = set()
    while epochs_done.keys() - finished_members.keys():
        while pending_indices and pool.has_capacity():
            index = pending_indices.pop()
            pool.submit(index, FoldRunJob(specs[index]))
        match pool.next_message():
            case JobProgress(key=int(index), message=FoldRunEvent() as event):
                epochs_done[index] = event.epochs_done
                # A worker may be lost after the last event of its fold run. The retry then finds
                # the fold run finished and emits that event again, which must not be reported
                # twice.
                if index not in ended_indices:
                    on_event(event)
                if event.kind in ("finished", "reused"):
                    ended_indices.add(index)
            case JobResult(key=int(index), result=Member() as member):
                finished_members[index] = member
            case WorkerLost(key=int(index)) as worker_lost:
                if not worker_lost.will_retry:
                    error = _retries_exhausted_error(specs[index], worker_lost)
                    on_event(failed_event(specs[index], epochs_done[index], error))
                    raise error
                reason = f"its {worker_lost.description}"
                on_event(fold_run_event(specs[index], "lost", epochs_done[index], reason=reason))


def _retries_exhausted_error(spec: FoldRunSpec, worker_lost: WorkerLost) -> TrainingFailed:
    num_times = worker_lost.num_times_lost
    times_lost = f", {num_times} times in total" if num_times > 1 else ""
    return TrainingFailed(
        f"{spec.name}: its {worker_lost.description}{times_lost}.",
        cause=worker_lost.cause,
        fix="If memory is short, lower workers or batch_rows. To debug an error, set workers to 1: "
        "the fold runs are then trained in the process of the run. Then run again: finished fold "
        "runs are kept, and this fold run resumes from its last checkpoint.",
    )


@contextmanager
def _interruptible(num_fold_runs: int, finished_members: dict[int, Member]) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            f"Training was stopped with {len(finished_members)} of {num_fold_runs} fold runs "
            "finished.",
            fix="Run again to continue: finished fold runs are kept, and started fold runs resume "
            "from their last checkpoint.",
        ) from None
