"""Reads settings that an earlier version of Sluice stored.

Stored settings never change, because the config digest of a version is the digest of its settings
as written. Settings that no longer exist are omitted when stored settings are read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sluice.workloads.workload import WorkloadSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedSetting:
    """A setting that stored versions may have, although the settings class no longer has it."""

    settings_class_path: str
    """Import path of the settings class that had the setting. Subclasses had it as well."""

    name: str
    """Name of the setting."""

    affects_row_order: bool = False
    """Whether the setting determined the order of rows, and thus which rows were training rows."""

    effect: str
    """Effect on a version that was trained with the setting, as a sentence."""


REMOVED_SETTINGS = (
    RemovedSetting(
        settings_class_path="sluice.workloads.digits:DigitsSettings",
        name="order_seed",
        affects_row_order=True,
        effect="Its rows had another order, so its folds differ from the current folds. Its "
        "networks and inputs are the same.",
    ),
)
"""All settings of workloads that existed in a released version and were removed. Add an entry here
when you remove a setting of a workload."""


def migrate_settings(
    stored_settings: Mapping[str, Any], settings_type: type[WorkloadSettings]
) -> tuple[dict[str, Any], tuple[RemovedSetting, ...]]:
    """Omit the removed settings from stored workload settings.

    Args:
        stored_settings: Workload settings from the lineage of a version.
        settings_type: Current settings class of the workload.

    Returns:
        The remaining settings, in which ``settings_type.parse`` still rejects unknown names; and
        the entries of ``REMOVED_SETTINGS`` whose settings were omitted.
    """
    settings_class_paths = {f"{cls.__module__}:{cls.__qualname__}" for cls in settings_type.__mro__}
    omitted_settings = tuple(
        setting
        for setting in REMOVED_SETTINGS
        if setting.name in stored_settings
        and setting.settings_class_path in settings_class_paths
        and setting.name not in settings_type.model_fields  # a user's class may define it again
    )
    omitted_names = {setting.name for setting in omitted_settings}
    current_settings = {
        name: value for name, value in stored_settings.items() if name not in omitted_names
    }
    return current_settings, omitted_settings
