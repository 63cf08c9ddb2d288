"""All units of one candidate, on the cores or the cluster there are."""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from sluice.base.errors import Interrupted, TrainingFailed
from sluice.cluster.jobs import Done, Lost, Pool, Told
from sluice.cluster.process_pool import open_process_pool
from sluice.cluster.ray_pool import open_ray_pool
from sluice.cluster.ray_session import join_ray
from sluice.cluster.settings import ComputeSettings
from sluice.training.device import device_on_ray
from sluice.training.members import Member
from sluice.training.unfinished import left_behind
from sluice.training.unit import (
    Clock,
    Hear,
    UnitEvent,
    UnitSpec,
    find_finished,
    unit_event,
    utc_now,
)
from sluice.training.unit_job import UnitJob, fit_unit
from sluice.training.unit_on_ranks import train_unit_on_ranks

_IMPORTS = ("sluice.training.unit_job",)
_SHOWN = 5


def train_members(
    specs: Sequence[UnitSpec],
    *,
    compute: ComputeSettings,
    on_event: Hear,
    clock: Clock = utc_now,
) -> tuple[list[Member], int]:
    """Fit all units; return their members in (seed, fold) order and how many were reused.

    Every unit runs on one thread, so the result does not depend on where and how many run at
    once. Units with most train rows start first. A unit whose process or machine was lost starts
    again elsewhere, from its last checkpoint, up to ``compute.retries`` times.

    Without an address and GPUs to reserve, units run in processes of this machine: Ray would cost
    seconds and half a gigabyte there and give nothing. With ``compute.workers`` of 1 they run in
    this process, whose errors are seen in place; other processes have a fixed hash seed, so that
    code that goes over sets gives the same bits everywhere but there. Else they run on Ray, where
    'auto' means the GPU when one is reserved. Units of several ranks run one after another: each
    takes as many processes.

    Args:
        specs: The units; on a cluster, ``runs`` and ``artifacts`` are the same folders everywhere.
        compute: Where units run, and what each reserves.
        on_event: Hears of every unit's progress, in this process.
        clock: Gives the time of log events; other processes use the system's.

    Raises:
        SluiceError: A unit failed; the message names its seed and fold. No other is started,
            finished ones are kept.
        TrainingFailed: A unit's process was lost too often, or the user's code raised.
        SettingsError: The cluster cannot be reached, does not share the folders, or has not what
            one unit reserves.
        Interrupted: The user stopped it (Ctrl-C); no process is left behind.
    """
    ranks = compute.ranks_per_training
    on_ray = compute.address is not None or compute.gpus_per_worker > 0 or ranks > 1
    specs = [dataclasses.replace(spec, ranks=ranks) for spec in specs]
    units = [_for_ray(spec, compute) if on_ray else spec for spec in specs]
    units.sort(key=lambda spec: (spec.seed, spec.fold.fold_id))
    finished: dict[int, Member] = {}
    for index, unit in enumerate(units):
        member = find_finished(unit)
        if member is not None:
            finished[index] = member
            on_event(unit_event(unit, "reused", member.epochs_run))
    reused = len(finished)
    left = [index for index in range(len(units)) if index not in finished]
    left.sort(key=lambda index: -len(units[index].fold.train))
    for index in left:
        differing = left_behind(units[index])
        if differing:
            reason = "; ".join(differing[:_SHOWN])
            on_event(unit_event(units[index], "replaces", 0, reason=reason))
            break  # the others were left for the same reason
    with _interruptible(len(units), finished):
        if left and ranks > 1:
            _fit_on_ranks(units, left, finished, on_event, compute=compute, clock=clock)
        elif not on_ray and compute.workers == 1:
            for index in left:
                finished[index] = fit_unit(units[index], on_event, clock)
        elif left:
            with _open_pool([units[index] for index in left], compute, on_ray=on_ray) as pool:
                _spread(pool, units, left, finished, on_event)
    return [finished[index] for index in range(len(units))], reused


def _for_ray(spec: UnitSpec, compute: ComputeSettings) -> UnitSpec:
    """Return the unit as every machine reads it alike."""
    device = device_on_ray(spec.training.device, gpus_per_worker=compute.gpus_per_worker)
    return dataclasses.replace(
        spec,
        training=spec.training.model_copy(update={"device": device}),
        artifacts=spec.artifacts.absolute(),
        runs=spec.runs.absolute(),
    )


def _fit_on_ranks(
    units: Sequence[UnitSpec],
    left: Sequence[int],
    finished: dict[int, Member],
    on_event: Hear,
    *,
    compute: ComputeSettings,
    clock: Clock,
) -> None:
    with join_ray(compute):  # once for all units: a start takes seconds
        joined = compute.model_copy(update={"address": None})
        for index in left:
            finished[index] = train_unit_on_ranks(
                units[index], on_event, compute=joined, clock=clock
            )


def _open_pool(
    units: Sequence[UnitSpec], compute: ComputeSettings, *, on_ray: bool
) -> AbstractContextManager[Pool]:
    if not on_ray:
        return open_process_pool(compute, most=len(units), imports=_IMPORTS)
    folders = sorted({folder for unit in units for folder in (unit.runs, unit.artifacts)})
    return open_ray_pool(compute, most=len(units), imports=_IMPORTS, folders=folders)


def _spread(
    pool: Pool,
    units: Sequence[UnitSpec],
    left: Sequence[int],
    finished: dict[int, Member],
    on_event: Hear,
) -> None:
    waiting = list(reversed(left))
    epochs_done = dict.fromkeys(left, 0)
    ended: set[int] = set()
    while epochs_done.keys() - finished.keys():
        while waiting and pool.free():
            index = waiting.pop()
            pool.give(index, UnitJob(units[index]))
        match pool.next():
            case Told(key=int(index), message=UnitEvent() as event):
                epochs_done[index] = event.epochs_done
                # One lost between its last word and its answer finds itself finished: said once.
                if index not in ended:
                    on_event(event)
                if event.kind in ("finished", "reused"):
                    ended.add(index)
            case Done(key=int(index), result=Member() as member):
                finished[index] = member
            case Lost(key=int(index)) as lost:
                if not lost.again:
                    raise _given_up(units[index], lost)
                reason = f"its {lost.what}"
                on_event(unit_event(units[index], "lost", epochs_done[index], reason=reason))


def _given_up(unit: UnitSpec, lost: Lost) -> TrainingFailed:
    often = f", {lost.times} times in all" if lost.times > 1 else ""
    return TrainingFailed(
        f"{unit.name}: its {lost.what}{often}.",
        cause=lost.cause,
        fix="Lower workers or batch_rows if memory is short; run with workers set to 1 to see an "
        "error in place. Then run again: finished units are kept and this one goes on from its "
        "last checkpoint.",
    )


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
