"""Settings as an earlier version of Sluice stored them, read with the settings of today.

What is stored never changes: the config digest of a version is the digest of its settings as they
were written. Only reading them leaves out what is no setting any more.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sluice.workloads.workload import WorkloadSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedSetting:
    """One setting of ours that stored versions have and today's classes do not."""

    owner: str
    """Import path of the settings class that had it; it counts for classes that inherit too."""

    name: str
    """Name of the setting."""

    orders_rows: bool = False
    """Whether it decided about the order of rows, and so about what a version has seen."""

    effect: str
    """What it means for a version that was trained with it, as a sentence."""


REMOVED = (
    RemovedSetting(
        owner="sluice.workloads.digits:DigitsSettings",
        name="order_seed",
        orders_rows=True,
        effect="Its rows were in another order, so its folds are not those of today; its networks "
        "and its inputs are the same.",
    ),
)
"""Every setting of a workload, a model or a training that was removed since versions are stored.
Whoever removes another one adds it here."""


def migrate(
    stored: Mapping[str, Any], settings_type: type[WorkloadSettings]
) -> tuple[dict[str, Any], tuple[RemovedSetting, ...]]:
    """Return stored workload settings without those that were removed, and which those were.

    Args:
        stored: As in the lineage of a version.
        settings_type: The settings class of its workload, as it is today.

    Returns:
        Settings for ``settings_type.parse``, which still refuses an unknown name, and the entries
        of ``REMOVED`` that were left out.
    """
    owners = {f"{cls.__module__}:{cls.__qualname__}" for cls in settings_type.__mro__}
    left_out = tuple(
        removed
        for removed in REMOVED
        if removed.name in stored
        and removed.owner in owners
        and removed.name not in settings_type.model_fields  # a user's class may have it again
    )
    names = {removed.name for removed in left_out}
    return {name: value for name, value in stored.items() if name not in names}, left_out
