"""Find what a user named by import path: ``module:Name``."""

import importlib
import sys
from collections.abc import Iterable
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


def search_beside(folder: Path, paths: Iterable[str]) -> None:
    """Let modules that a pipeline's file names be found beside it, from whatever working folder.

    Args:
        folder: Of the pipeline's file; it is put in front of ``sys.path`` when a module is there.
        paths: Import paths that the file names, 'module:Name'.

    Raises:
        SettingsError: A module of that name belongs to another folder in this process already.
    """
    folder = folder.resolve()
    for path in paths:
        top = path.partition(":")[0].split(".")[0]
        file = next((f for f in (folder / f"{top}.py", folder / top) if top and f.exists()), None)
        if file is None:
            continue
        loaded = getattr(sys.modules.get(top), "__file__", None)
        other = Path(loaded).resolve() if loaded else _beside.get(top, file)
        if other.exists() and not other.is_relative_to(folder):
            raise SettingsError(
                f"The module '{top}' of '{path}' is required from {file}, and this process has "
                f"another one of that name from {other}.",
                cause="Python keeps one module of a name, so one of two pipelines would run the "
                "code of the other.",
                fix=f"Rename {file.name}, or start a process for each of the two pipelines.",
            )
        _beside[top] = file
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))


_beside: dict[str, Path] = {}
"""Files of modules that were found beside a pipeline's file in this process, by name."""


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
