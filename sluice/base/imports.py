"""Imports objects that the user names by import path: ``module:Name``.

The user's folders come last on ``sys.path``, after the standard library and installed packages: a
downloaded folder may contain a ``random.py``, which must not run only because a command is started
there. Only commands that import user code add these folders.
"""

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

from sluice.base.errors import SettingsError
from sluice.base.import_errors import explain_import_error
from sluice.base.settings import suggest_nearest


def import_object(path: str, *, what: str) -> Any:
    """Import the object with the path ``module:Name``.

    Args:
        path: Dotted module, a colon, and a name in it.
        what: Purpose of the object, for messages ("workload", "architecture").

    Raises:
        SettingsError: The path is malformed, the module is not found (the message suggests the
            nearest one) or fails to import (with the reason and the location), or it has no such
            name (the message suggests the nearest one).
    """
    module_name, colon, name = path.partition(":")
    if module_name.endswith(".py") or "/" in module_name:
        raise _file_name_error(path, module_name, name or "MyClass", what)
    if not (module_name and colon and name):
        raise SettingsError(
            f"The path of a {what} must have the form 'module:Name', got '{path}'.",
            fix="Write the dotted module, a colon and the class, as in 'my_model:MyWorkload'.",
        )
    try:
        _add_working_folder(module_name)
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever the user's module raises while it loads
        raise explain_import_error(error, path, module_name, what=what) from error
    found = resolve_attribute(module, name)
    if found is None:
        raise SettingsError(
            f"The {what} '{path}': module {module_name} has no '{name}'."
            + suggest_nearest(name, [n for n in vars(module) if not n.startswith("_")]),
            cause=_describe_shadowing(module_name.split(".")[0], module),
            fix="Correct the name after the colon.",
        )
    return found


def add_pipeline_folder(folder: Path, paths: Iterable[str]) -> None:
    """Make the modules that a pipeline file names importable from the file's folder.

    Args:
        folder: Folder of the pipeline file. If it contains one of the modules, it is added to the
            end of ``sys.path``, before the working folder.
        paths: Import paths in the file, 'module:Name'.

    Raises:
        SettingsError: This process already imported a module of that name from another folder, or
            the name belongs to the standard library or an installed package.
    """
    folder = folder.resolve()
    for path in paths:
        top = path.partition(":")[0].split(".")[0]
        file = next((f for f in (folder / f"{top}.py", folder / top) if top and f.exists()), None)
        if file is None:
            continue
        loaded = getattr(sys.modules.get(top), "__file__", None)
        other = Path(loaded).resolve() if loaded else _pipeline_modules.get(top, file)
        if other.exists() and not other.is_relative_to(folder):
            raise SettingsError(
                f"The module '{top}' of '{path}' is required from {file}, but this process already "
                f"uses {other} under that name.",
                cause="Python keeps one module per name, so one of the two pipelines would run "
                "the code of the other.",
                fix=f"Rename {file.name}, or start a separate process for each pipeline.",
            )
        _add_search_folder(folder, before_others=True)
        _require_not_shadowed(file, top, path)
        _pipeline_modules[top] = file


def _add_working_folder(module_name: str) -> None:
    """Add the working folder to ``sys.path`` unless the module is an installed one.

    Libraries probe for optional packages: with the working folder on the path, they would import
    files of those names from there even for a shipped pipeline.
    """
    top = module_name.partition(".")[0]
    importlib.invalidate_caches()
    loaded = sys.modules.get(top)
    spec = importlib.util.find_spec(top) if loaded is None else loaded.__spec__
    locations = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    own = [location for location in locations if location and _is_user_path(Path(location))]
    if spec is None or own:
        _add_search_folder(Path.cwd(), before_others=False)


def _is_user_path(location: Path) -> bool:
    return any(location.is_relative_to(folder) for folder in _search_folders)


def _add_search_folder(folder: Path, *, before_others: bool) -> None:
    """Add a folder to the end of ``sys.path``, or before the folders added earlier."""
    if str(folder) in sys.path:
        return
    added = [sys.path.index(each) for each in _search_folders if each in sys.path]
    sys.path.insert(min(added) if added and before_others else len(sys.path), str(folder))
    _search_folders.append(str(folder))


def _require_not_shadowed(file: Path, top: str, path: str) -> None:
    """Reject a module in the pipeline's folder if Python would import another of that name."""
    if top in sys.modules:
        return
    importlib.invalidate_caches()
    spec = importlib.util.find_spec(top)
    locations = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    if any(location and Path(location).is_relative_to(file.parent) for location in locations):
        return
    raise SettingsError(
        f"The module '{top}' of '{path}' is required from {file}, but Python finds another module "
        f"of that name first: {next((p for p in locations if p), 'built in')}.",
        cause="The standard library and installed packages precede the user's folders.",
        fix=f"Rename {file.name}, and the name in the pipeline file.",
    )


def _describe_shadowing(top: str, module: ModuleType) -> str:
    """Return the sentence that a module of the working folder is shadowed; '' if none is."""
    file = next((f for f in (Path.cwd() / f"{top}.py", Path.cwd() / top) if f.exists()), None)
    found = getattr(module, "__file__", None)
    if file is None or found is None or Path(found).is_relative_to(Path.cwd()):
        return ""
    return (
        f"Python imported {found} and not {file}: the standard library and installed packages are "
        "searched first."
    )


_search_folders: list[str] = []
"""Folders added to ``sys.path`` by this module."""

_pipeline_modules: dict[str, Path] = {}
"""Files of modules found in a pipeline's folder by this process, by module name."""


def resolve_attribute(module: ModuleType, name: str) -> Any | None:
    """Return the attribute ``name`` of ``module``, which may be 'Outer.Inner'; None if missing."""
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _file_name_error(path: str, file: str, name: str, what: str) -> SettingsError:
    """Return the error for a file name such as 'sub/inner.py:Seq', with the path to use instead."""
    location = PurePath(file.removesuffix(".py"))
    if location.is_absolute():
        here = Path.cwd()
        location = location.relative_to(here) if location.is_relative_to(here) else location
    if location.is_absolute() or ".." in location.parts:
        fix = f"Start in the folder {location.parent} and write '{location.name}:{name}'."
    else:
        fix = f"Write '{'.'.join(location.parts)}:{name}'."
    return SettingsError(
        f"The path of a {what} must have the form 'module:Name', got a file name in '{path}'.",
        fix=fix,
    )
