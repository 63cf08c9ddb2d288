"""Find what a user named by import path: ``module:Name``.

Folders of the user's are searched last, after the standard library and what is installed: a folder
that was downloaded may hold a ``random.py``, which must not run because a command runs there. Only
commands that load what a user named search them at all.
"""

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

from sluice.base.errors import SettingsError
from sluice.base.import_errors import explain_failure
from sluice.base.settings import nearest


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
        _search_here(module_name)
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever the user's module raises while it loads
        raise explain_failure(error, path, module_name, what=what) from error
    found = find_in(module, name)
    if found is None:
        raise SettingsError(
            f"The {what} '{path}': module {module_name} has no '{name}'."
            + nearest(name, [n for n in vars(module) if not n.startswith("_")]),
            cause=_hidden_by(module_name.split(".")[0], module),
            fix="Correct the name after the colon.",
        )
    return found


def search_beside(folder: Path, paths: Iterable[str]) -> None:
    """Let modules that a pipeline's file names be found beside it, from whatever working folder.

    Args:
        folder: Of the pipeline's file; it is added to the end of ``sys.path``, before the working
            folder, when a module is there.
        paths: Import paths that the file names, 'module:Name'.

    Raises:
        SettingsError: A module of that name belongs to another folder in this process already, or
            to the standard library or an installed package.
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
        _search(folder, before_others=True)
        _require_first(file, top, path)
        _beside[top] = file


def _search_here(module_name: str) -> None:
    """Search the working folder too, unless the module is an installed one.

    Libraries try to import packages that are not installed: for a shipped pipeline they would take
    files of those names from there.
    """
    top = module_name.partition(".")[0]
    importlib.invalidate_caches()
    loaded = sys.modules.get(top)
    spec = importlib.util.find_spec(top) if loaded is None else loaded.__spec__
    places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    own = [place for place in places if place and _is_users(Path(place))]
    if spec is None or own:
        _search(Path.cwd(), before_others=False)


def _is_users(place: Path) -> bool:
    return any(place.is_relative_to(folder) for folder in _searched)


def _search(folder: Path, *, before_others: bool) -> None:
    """Add a folder to the end of ``sys.path``, or before those that were added here."""
    if str(folder) in sys.path:
        return
    added = [sys.path.index(each) for each in _searched if each in sys.path]
    sys.path.insert(min(added) if added and before_others else len(sys.path), str(folder))
    _searched.append(str(folder))


def _require_first(file: Path, top: str, path: str) -> None:
    """Refuse a module beside a pipeline's file that Python finds elsewhere first."""
    if top in sys.modules:
        return
    importlib.invalidate_caches()
    spec = importlib.util.find_spec(top)
    places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    if any(place and Path(place).is_relative_to(file.parent) for place in places):
        return
    raise SettingsError(
        f"The module '{top}' of '{path}' is required from {file}, and Python finds another one of "
        f"that name first: {next((p for p in places if p), 'built in')}.",
        cause="The standard library and installed packages are searched before a user's folder.",
        fix=f"Rename {file.name}, and the name in the pipeline's file.",
    )


def _hidden_by(top: str, module: ModuleType) -> str:
    """Say that a module of the working folder was passed over, '' when none was."""
    file = next((f for f in (Path.cwd() / f"{top}.py", Path.cwd() / top) if f.exists()), None)
    found = getattr(module, "__file__", None)
    if file is None or found is None or Path(found).is_relative_to(Path.cwd()):
        return ""
    return (
        f"Python found {found}, and not {file}: the standard library and installed packages are "
        "searched first."
    )


_searched: list[str] = []
"""Folders that were added to ``sys.path`` here."""

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
