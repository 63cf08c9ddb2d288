"""Build the workload that a pipeline or a unit of work names by import path."""

from collections.abc import Mapping
from typing import Any

from sluice.base.errors import SettingsError
from sluice.base.imports import import_named
from sluice.data.expectations import declare
from sluice.workloads.workload import Workload, WorkloadSettings


def load_workload(path: str, settings: Mapping[str, Any], *, where: str) -> Workload:
    """Build the workload that ``module:Class`` names.

    Args:
        path: Its import path.
        settings: Its settings as plain values.
        where: Where the settings were written, for the message.

    Raises:
        SettingsError: It does not import, is no workload, or a setting of it is wrong.
    """
    cls = require_workload_type(import_named(path, what="workload"), path)
    return build_workload(cls, cls.settings_type.parse(dict(settings), where=where), path=path)


def require_workload_type(found: object, path: str) -> type[Workload]:
    """Return ``found``, which ``path`` named, when it is a workload's class.

    Raises:
        SettingsError: It is not.
    """
    if not (isinstance(found, type) and issubclass(found, Workload)):
        raise SettingsError(
            f"The workload '{path}' must be a class that inherits from "
            f"sluice.workloads.workload:Workload, got {found!r}.",
            fix="Name the class itself and let it inherit from Workload.",
        )
    return found


def build_workload(cls: type[Workload], settings: WorkloadSettings, *, path: str) -> Workload:
    """Build the workload from its settings.

    Raises:
        SettingsError: A method is missing, or its constructor takes something else.
        ContractError: An expectation that it declares is none.
    """
    try:
        workload = cls(settings)
    except TypeError as error:
        raise SettingsError(
            f"The workload '{path}' cannot be built: {error}.",
            fix="Write every abstract method the message names; __init__ takes the settings only.",
        ) from error
    for table in ("raw_expectations", "feature_expectations"):
        declared = declare(getattr(workload, table), where=f"{path}: {table}")
        setattr(workload, table, declared)
    return workload
