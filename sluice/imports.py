"""Find what a user named by import path: ``module:Name``."""

import importlib
from pathlib import PurePath
from types import ModuleType
from typing import Any

from sluice.errors import SettingsError
from sluice.settings import nearest


def import_named(path: str, *, what: str) -> Any:
    """Return the object that ``module:Name`` names.

    Args:
        path: Dotted module, a colon, and a name in it.
        what: What it is for, to begin the message with ("workload", "architecture").

    Raises:
        SettingsError: The path has no colon, the module does not import (with the reason), or it
            has no such name (the nearest one is offered).
    """
    module_name, colon, name = path.partition(":")
    if not (module_name and colon and name):
        raise SettingsError(
            f"A {what} is named as 'module:Name', got '{path}'.",
            fix="Write the dotted module, a colon and the class, as in 'my_model:MyWorkload'.",
        )
    if module_name.endswith(".py"):
        stem = PurePath(module_name).stem
        raise SettingsError(
            f"A {what} is named as 'module:Name', got the file name in '{path}'.",
            fix=f"Start in the file's folder and write '{stem}:{name}'.",
        )
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever the user's module raises while it loads
        raise SettingsError(
            f"The {what} '{path}' does not import: {type(error).__name__}: {error}.",
            fix=f"Make 'import {module_name}' work from the folder you start in, then start again.",
        ) from error
    found = find_in(module, name)
    if found is None:
        raise SettingsError(
            f"The {what} '{path}': module {module_name} has no '{name}'."
            + nearest(name, [n for n in vars(module) if not n.startswith("_")]),
            fix="Correct the name after the colon.",
        )
    return found


def find_in(module: ModuleType, name: str) -> Any | None:
    """Return what ``name`` means in ``module``; 'Outer.Inner' is within a class. None: nothing."""
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
