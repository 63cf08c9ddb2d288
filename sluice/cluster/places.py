"""How many jobs fit on the machines at once."""

import math
from collections.abc import Mapping, Sequence

from sluice.base.errors import SettingsError
from sluice.cluster.settings import ComputeSettings

_ROUNDING = 1e-9
"""Three shares of a third make one."""


def count_places(machines: Sequence[Mapping[str, float]], compute: ComputeSettings) -> int:
    """Return how many jobs fit, each on one machine, at most ``compute.workers``.

    Args:
        machines: Of each, how many 'CPU' and 'GPU' it has; none of what is not named.
        compute: What a job reserves.

    Raises:
        SettingsError: Not one fits.
    """
    fits = sum(
        min(
            _shares(machine.get("CPU", 0.0), compute.cpus_per_worker),
            _gpu_shares(machine.get("GPU", 0.0), compute.gpus_per_worker),
        )
        for machine in machines
    )
    if fits >= 1:
        return int(min(fits, compute.workers or fits))
    raise _too_much(machines, compute)


def require_places(machines: Sequence[Mapping[str, float]], compute: ComputeSettings) -> None:
    """Refuse ranks that cannot all run at the same time: Ray itself waits for ever.

    Args:
        machines: As for ``count_places``.
        compute: How many ranks a training has, and what each reserves.

    Raises:
        SettingsError: There are fewer places than ranks.
    """
    ranks = compute.ranks_per_training
    places = count_places(machines, compute.model_copy(update={"workers": None}))
    if places < ranks:
        raise SettingsError(
            f"{ranks} ranks (ranks_per_training) need a place each at the same time, there are "
            f"{places}: each reserves {compute.cpus_per_worker:g} CPU (cpus_per_worker) and "
            f"{compute.gpus_per_worker:g} GPU (gpus_per_worker) of one machine.",
            cause="A rank cannot lie on two machines, so that a rest on each of them is of no use.",
            fix="Lower ranks_per_training or what each reserves, or give the address of a cluster "
            "that has as many.",
        )


def _shares(there: float, wanted: float) -> float:
    return math.floor(there / wanted + _ROUNDING)


def _gpu_shares(there: float, wanted: float) -> float:
    if wanted <= 0:
        return math.inf
    # A share lies on one GPU: five jobs of 0.4 do not fit on two.
    return there * _shares(1.0, wanted) if wanted < 1 else _shares(there, wanted)


def _too_much(machines: Sequence[Mapping[str, float]], compute: ComputeSettings) -> SettingsError:
    fix = "Lower {}, or give the address of a cluster that has as many."
    for name, setting, wanted in (
        ("GPU", "gpus_per_worker", compute.gpus_per_worker),
        ("CPU", "cpus_per_worker", compute.cpus_per_worker),
    ):
        most = max((machine.get(name, 0.0) for machine in machines), default=0.0)
        if not wanted <= most:
            where = "this machine" if len(machines) == 1 else f"the largest of {len(machines)}"
            return SettingsError(
                f"A training reserves {wanted:g} {name} ({setting}), {where} has {most:g}.",
                fix=fix.format(setting),
            )
    return SettingsError(
        f"A training reserves {compute.cpus_per_worker:g} CPU (cpus_per_worker) and "
        f"{compute.gpus_per_worker:g} GPU (gpus_per_worker), and no machine has both.",
        fix=fix.format("one of them"),
    )
