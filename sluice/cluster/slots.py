"""Counts slots: the number of jobs that fit on the machines at the same time."""

import math
from collections.abc import Mapping, Sequence

from sluice.base.errors import SettingsError
from sluice.base.pluralize import pluralize
from sluice.cluster.settings import ComputeSettings

_TOLERANCE = 1e-9
"""Tolerance for rounding errors of a division, so that three jobs with 1/3 GPU fit on one GPU."""


def count_slots(machines: Sequence[Mapping[str, float]], compute: ComputeSettings) -> int:
    """Return the number of jobs that fit, each on one machine, but at most ``compute.workers``.

    Args:
        machines: Amount of 'CPU' and 'GPU' of each machine; a missing entry counts as 0.
        compute: Resources that a job reserves.

    Raises:
        SettingsError: No machine is large enough for a job.
    """
    num_slots = sum(
        min(
            _count_jobs(machine.get("CPU", 0.0), compute.cpus_per_worker),
            _count_gpu_jobs(machine.get("GPU", 0.0), compute.gpus_per_worker),
        )
        for machine in machines
    )
    if num_slots >= 1:
        return int(min(num_slots, compute.workers or num_slots))
    raise _not_enough_resources_error(machines, compute)


def require_slots(machines: Sequence[Mapping[str, float]], compute: ComputeSettings) -> None:
    """Refuse settings with which the ranks do not all fit at once. Ray would wait forever.

    Args:
        machines: As for ``count_slots``.
        compute: Number of ranks of a training, and the resources that each reserves.

    Raises:
        SettingsError: There are fewer slots than ranks.
    """
    num_ranks = compute.ranks_per_training
    num_slots = count_slots(machines, compute.model_copy(update={"workers": None}))
    if num_slots < num_ranks:
        raise SettingsError(
            f"{num_ranks} ranks (ranks_per_training) need {num_ranks} slots at the same time, but "
            f"the machines have {pluralize(num_slots, 'slot')}. Each rank reserves "
            f"{compute.cpus_per_worker:g} CPU (cpus_per_worker) and {compute.gpus_per_worker:g} "
            "GPU (gpus_per_worker) of one machine.",
            cause="A rank cannot span machines, so leftover CPUs on different machines cannot be "
            "combined.",
            fix="Lower ranks_per_training, cpus_per_worker or gpus_per_worker, or set the address "
            "of a larger cluster.",
        )


def _count_jobs(available: float, required: float) -> float:
    return math.floor(available / required + _TOLERANCE)


def _count_gpu_jobs(available: float, required: float) -> float:
    if required <= 0:
        return math.inf
    # A job with a fraction of a GPU uses one GPU only: on two GPUs, four jobs of 0.4 fit, not five.
    return (
        available * _count_jobs(1.0, required) if required < 1 else _count_jobs(available, required)
    )


def _not_enough_resources_error(
    machines: Sequence[Mapping[str, float]], compute: ComputeSettings
) -> SettingsError:
    fix = "Lower {}, or set the address of a larger cluster."
    for name, setting, required in (
        ("GPU", "gpus_per_worker", compute.gpus_per_worker),
        ("CPU", "cpus_per_worker", compute.cpus_per_worker),
    ):
        largest_amount = max((machine.get(name, 0.0) for machine in machines), default=0.0)
        if required > largest_amount:
            machine_text = (
                "this machine" if len(machines) == 1 else f"the largest of {len(machines)} machines"
            )
            return SettingsError(
                f"A training reserves {required:g} {name} ({setting}), but {machine_text} has "
                f"{largest_amount:g}.",
                fix=fix.format(setting),
            )
    return SettingsError(
        f"A training reserves {compute.cpus_per_worker:g} CPU (cpus_per_worker) and "
        f"{compute.gpus_per_worker:g} GPU (gpus_per_worker), but no machine has both.",
        fix=fix.format("one of them"),
    )
