"""Trains one fold run on several processes (ranks), each with a part of every batch."""

import dataclasses
import functools

from sluice.base.errors import SluiceError
from sluice.cluster.ray_train import Emit, run_on_ranks
from sluice.cluster.settings import ComputeSettings
from sluice.training.distributed import DistributedRanks, convert_rank_errors
from sluice.training.fold_run import Clock, train_fold_run, utc_now
from sluice.training.fold_run_events import FoldRunEvent, OnFoldRunEvent
from sluice.training.fold_run_job import failed_event, with_name
from sluice.training.fold_run_spec import FoldRunSpec
from sluice.training.members import Member


def train_fold_run_on_ranks(
    spec: FoldRunSpec, on_event: OnFoldRunEvent, *, compute: ComputeSettings, clock: Clock = utc_now
) -> Member:
    """Train one fold run with ``spec.num_ranks`` processes, or return the member if it is finished.

    If a process is lost, all ranks start again from the last checkpoint. The result is
    bit-identical to the result of a training in which no process is lost.

    Args:
        spec: The fold run. On a cluster its folders must be shared by all machines.
        on_event: Called in this process with the events of the fold run. After a process was lost,
            the fold run starts again and sends another 'started' event.
        compute: Machines, and the resources that each process reserves.
        clock: Time of the log's events; an importable function.

    Raises:
        SluiceError: The fold run failed; the message names its seed and fold.
        SettingsError: The resources do not suffice for all ranks at the same time.
    """
    spec = dataclasses.replace(spec, artifacts=spec.artifacts.absolute(), runs=spec.runs.absolute())
    fit = functools.partial(_fit, spec, clock)
    epochs_done = 0

    def on_message(event: FoldRunEvent) -> None:
        nonlocal epochs_done
        epochs_done = event.epochs_done
        on_event(event)

    try:
        return run_on_ranks(fit, compute=compute, folder=spec.runs, on_message=on_message)
    except SluiceError as error:
        named_error = with_name(spec, error)
        on_event(failed_event(spec, epochs_done, named_error))
        raise named_error from error


def _fit(spec: FoldRunSpec, clock: Clock, emit: Emit) -> Member:
    ranks = DistributedRanks()
    with convert_rank_errors(ranks.shard.rank):
        return train_fold_run(spec, emit, clock=clock, ranks=ranks)
