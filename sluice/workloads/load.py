"""Builds a workload from its import path and settings."""

import traceback
from collections.abc import Mapping
from typing import Any

from sluice.base.errors import SettingsError
from sluice.base.imports import import_object
from sluice.data.expectations import as_expectations
from sluice.workloads.workload import Workload, WorkloadSettings


def load_workload(path: str, settings: Mapping[str, Any], *, where: str) -> Workload:
    """Build the workload with the import path ``module:Class``.

    Args:
        path: Import path of the workload.
        settings: Settings of the workload as plain values.
        where: Origin of the settings, for the message.

    Raises:
        SettingsError: The class cannot be imported or built, is not a workload, or a setting is
            invalid.
        ContractError: A declared expectation is not an expectation object.
    """
    cls = require_workload_type(import_object(path, what="workload"), path)
    return build_workload(cls, cls.settings_type.parse(dict(settings), where=where), path=path)


def require_workload_type(imported: object, path: str) -> type[Workload]:
    """Return the imported object if it is a workload class.

    Args:
        imported: Object imported from ``path``.
        path: Import path, for the message.

    Raises:
        SettingsError: The object is not a workload class.
    """
    if not (isinstance(imported, type) and issubclass(imported, Workload)):
        raise SettingsError(
            f"The workload '{path}' must be a class that inherits from "
            f"sluice.workloads.workload:Workload, got {imported!r}.",
            fix="Set the import path of the class itself, and let it inherit from Workload.",
        )
    return imported


def build_workload(cls: type[Workload], settings: WorkloadSettings, *, path: str) -> Workload:
    """Build the workload from its settings.

    Raises:
        SettingsError: A method is missing, or the constructor has other arguments or raises a
            TypeError.
        ContractError: A declared expectation is not an expectation object.
    """
    try:
        workload = cls(settings)
    except TypeError as error:
        fix = (
            "Implement every abstract method that the message names, and let __init__ take only "
            "the settings."
        )
        origin = traceback.extract_tb(error.__traceback__)[-1]
        if origin.filename != __file__:  # raised inside of __init__, not by the call itself
            fix = f"Correct {origin.filename}:{origin.lineno}, which __init__ runs: {origin.line}"
        raise SettingsError(f"The workload '{path}' cannot be built: {error}.", fix=fix) from error
    for attribute in ("raw_expectations", "feature_expectations"):
        expectations = as_expectations(getattr(workload, attribute), where=f"{path}: {attribute}")
        setattr(workload, attribute, expectations)
    return workload
