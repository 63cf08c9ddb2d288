"""Imports objects that the user names by import path: ``module:Name``.

The user's folders are added at the end of ``sys.path``, after the standard library and installed
packages. If these folders were searched first, a ``random.py`` in a downloaded folder would run as
soon as a command is started there. Only commands that import user code add the folders.
"""

import importlib
import importlib.util
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

from sluice.base.errors import SettingsError
from sluice.base.import_errors import explain_import_error
from sluice.base.settings import suggest_nearest

_MAX_INVALIDATIONS = 10
"""Maximum number of attempts to invalidate the caches of the import system."""


def import_object(path: str, *, what: str) -> Any:
    """Import the object with the path ``module:Name``.

    Args:
        path: Dotted module, a colon, and a name in this module.
        what: Purpose of the object, for messages ("workload", "architecture").

    Raises:
        SettingsError: The path is malformed, the module is not found, the module raises during the
            import, or the module does not contain the name. The message contains the reason and the
            location. For a misspelled module or name, it suggests the nearest module or name.
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
    except (Exception, SystemExit) as error:  # The user's module may raise anything.
        raise explain_import_error(error, path, module_name, what=what) from error
    imported = resolve_attribute(module, name)
    if imported is None:
        raise SettingsError(
            f"The {what} '{path}': module {module_name} has no '{name}'."
            + suggest_nearest(name, [n for n in vars(module) if not n.startswith("_")]),
            cause=_describe_shadowing(module_name.split(".")[0], module),
            fix="Correct the name after the colon.",
        )
    return imported


def add_pipeline_folder(folder: Path, paths: Iterable[str]) -> None:
    """Add the folder of a pipeline file to ``sys.path`` if its import paths need this folder.

    Args:
        folder: Folder of the pipeline file. It is added near the end of ``sys.path``, before the
            working folder.
        paths: Import paths in the file, 'module:Name'.

    Raises:
        SettingsError: A module of this process, of the standard library, or of an installed package
            already has the name.
    """
    folder = folder.resolve()
    for path in paths:
        package = path.partition(":")[0].split(".")[0]
        file = next(
            (f for f in (folder / f"{package}.py", folder / package) if package and f.exists()),
            None,
        )
        if file is None:
            continue
        loaded_file = getattr(sys.modules.get(package), "__file__", None)
        used_file = (
            Path(loaded_file).resolve() if loaded_file else _pipeline_modules.get(package, file)
        )
        if used_file.exists() and not used_file.is_relative_to(folder):
            if any(used_file.is_relative_to(library) for library in _library_folders()):
                raise _shadowed_module_error(file, package, path, used_location=str(used_file))
            raise SettingsError(
                f"The module '{package}' of '{path}' is required from {file}, but this process "
                f"already uses {used_file} under this name.",
                cause="Python keeps one module per name, so one of the two pipelines would run "
                "the code of the other.",
                fix=f"Rename {file.name}, or start a separate process for each pipeline.",
            )
        _add_search_folder(folder, before_others=True)
        _require_not_shadowed(file, package, path)
        _pipeline_modules[package] = file


def _add_working_folder(module_name: str) -> None:
    """Add the working folder to ``sys.path`` unless the module is installed.

    Libraries try to import optional packages. If the working folder were always on the path, files
    in this folder with the names of optional packages would be imported. This would also happen for
    pipelines that are part of Sluice.
    """
    package = module_name.partition(".")[0]
    _invalidate_caches()
    loaded_module = sys.modules.get(package)
    spec = importlib.util.find_spec(package) if loaded_module is None else loaded_module.__spec__
    locations = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    is_user_module = any(location and _is_user_path(Path(location)) for location in locations)
    if spec is None or is_user_module:
        _add_search_folder(Path.cwd(), before_others=False)


def _invalidate_caches() -> None:
    """Let Python find files that were written a moment ago; retry while other threads import."""
    for _ in range(_MAX_INVALIDATIONS):
        try:
            importlib.invalidate_caches()
        except RuntimeError:  # a dict of Python changed while another thread imported
            continue
        return


def _is_user_path(location: Path) -> bool:
    """Return whether a file is in one of the folders that ``_add_search_folder`` added."""
    return any(location.is_relative_to(folder) for folder in _search_folders)


def _add_search_folder(folder: Path, *, before_others: bool) -> None:
    """Add a folder to the end of ``sys.path``, or before the folders added earlier."""
    if str(folder) in sys.path:
        return
    added_positions = [sys.path.index(each) for each in _search_folders if each in sys.path]
    goes_first = before_others and bool(added_positions)
    sys.path.insert(min(added_positions) if goes_first else len(sys.path), str(folder))
    _search_folders.append(str(folder))


def _library_folders() -> list[Path]:
    """Return the folders of the standard library and of installed packages."""
    names = ("stdlib", "purelib", "platlib")
    return [Path(sysconfig.get_path(name)).resolve() for name in names]


def _require_not_shadowed(file: Path, package: str, path: str) -> None:
    """Reject a module of the pipeline's folder if Python would import another module instead."""
    if package in sys.modules:
        return
    importlib.invalidate_caches()
    spec = importlib.util.find_spec(package)
    locations = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    if any(location and Path(location).is_relative_to(file.parent) for location in locations):
        return
    raise _shadowed_module_error(
        file, package, path, used_location=next((p for p in locations if p), "built in")
    )


def _shadowed_module_error(
    file: Path, package: str, path: str, *, used_location: str
) -> SettingsError:
    return SettingsError(
        f"The module '{package}' of '{path}' is required from {file}, but Python finds another "
        f"module of that name first: {used_location}.",
        cause="The standard library and installed packages precede the user's folders.",
        fix=f"Rename {file.name}, and the name in the pipeline file.",
    )


def _describe_shadowing(package: str, module: ModuleType) -> str:
    """Return a sentence if the module was not imported from its file in the working folder."""
    file = next(
        (f for f in (Path.cwd() / f"{package}.py", Path.cwd() / package) if f.exists()), None
    )
    imported_file = getattr(module, "__file__", None)
    if file is None or imported_file is None or Path(imported_file).is_relative_to(Path.cwd()):
        return ""
    return (
        f"Python imported {imported_file} and not {file}, because the standard library and "
        "installed packages are searched first."
    )


_search_folders: list[str] = []
"""Folders added to ``sys.path`` by this module."""

_pipeline_modules: dict[str, Path] = {}
"""File of each module that this process found in a pipeline's folder, by module name."""


def resolve_attribute(module: ModuleType, name: str) -> Any | None:
    """Return an attribute of a module; None if it is missing. ``name`` may be 'Outer.Inner'."""
    attribute: Any = module
    for part in name.split("."):
        attribute = getattr(attribute, part, None)
    return attribute


def _file_name_error(path: str, file: str, name: str, what: str) -> SettingsError:
    """Return the error for a file name such as 'sub/inner.py:Seq', with the path to use instead."""
    location = PurePath(file.removesuffix(".py"))
    if location.is_absolute():
        cwd = Path.cwd()
        location = location.relative_to(cwd) if location.is_relative_to(cwd) else location
    if location.is_absolute() or ".." in location.parts:
        fix = f"Start in the folder {location.parent} and write '{location.name}:{name}'."
    else:
        fix = f"Write '{'.'.join(location.parts)}:{name}'."
    return SettingsError(
        f"The path of a {what} must have the form 'module:Name', got a file name in '{path}'.",
        fix=fix,
    )
