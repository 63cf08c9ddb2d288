"""Find what a user named by import path: ``module:Name``."""

import importlib
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

from sluice.errors import SettingsError
from sluice.import_failures import explain_failure
from sluice.settings import nearest


def import_named(path: str, *, what: str) -> Any:
    """Return the object that ``module:Name`` names.

    Args:
        path: Dotted module, a colon, and a name in it.
        what: What it is for, to begin the message with ("workload", "architecture").

    Raises:
        SettingsError: The path is not written so, the module is not found (the nearest one is
            offered) or does not import (with the reason and the place), or it has no such name
            (the nearest one is offered).
    """
    module_name, colon, name = path.partition(":")
    if module_name.endswith(".py") or "/" in module_name:
        raise _file_name(path, module_name, name or "MyClass", what)
    if not (module_name and colon and name):
        raise SettingsError(
            f"A {what} is named as 'module:Name', got '{path}'.",
            fix="Write the dotted module, a colon and the class, as in 'my_model:MyWorkload'.",
        )
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever the user's module raises while it loads
        raise explain_failure(error, path, module_name, what=what) from error
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


def _file_name(path: str, file: str, name: str, what: str) -> SettingsError:
    """Turn 'sub/inner.py:Seq' into what to write instead."""
    place = PurePath(file.removesuffix(".py"))
    if place.is_absolute():
        here = Path.cwd()
        place = place.relative_to(here) if place.is_relative_to(here) else place
    if place.is_absolute() or ".." in place.parts:
        fix = f"Start in the folder {place.parent} and write '{place.name}:{name}'."
    else:
        fix = f"Write '{'.'.join(place.parts)}:{name}'."
    return SettingsError(
        f"A {what} is named as 'module:Name', got the file name in '{path}'.", fix=fix
    )
