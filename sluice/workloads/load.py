"""Build the workload that a pipeline or a unit of work names by import path."""

from collections.abc import Mapping
from typing import Any

from sluice.errors import SettingsError
from sluice.imports import import_named
from sluice.workloads.workload import Workload


def load_workload(path: str, settings: Mapping[str, Any], *, where: str) -> Workload:
    """Build the workload that ``module:Class`` names.

    Args:
        path: Its import path.
        settings: Its settings as plain values.
        where: Where the settings were written, for the message.

    Raises:
        SettingsError: It does not import, is no workload, or a setting of it is wrong.
    """
    cls = import_named(path, what="workload")
    if not (isinstance(cls, type) and issubclass(cls, Workload)):
        raise SettingsError(
            f"The workload '{path}' must be a class that inherits from "
            f"sluice.workloads.workload:Workload, got {cls!r}.",
            fix="Name the class itself and let it inherit from Workload.",
        )
    parsed = cls.settings_type.parse(dict(settings), where=where)
    try:
        return cls(parsed)
    except TypeError as error:
        raise SettingsError(
            f"The workload '{path}' cannot be built: {error}.",
            fix="Write every abstract method the message names; __init__ takes the settings only.",
        ) from error
