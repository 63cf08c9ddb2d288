"""Explains why a user's module cannot be imported, with a fix for each cause."""

import difflib
import sys
import sysconfig
import traceback
from importlib.machinery import PathFinder
from itertools import islice
from pathlib import Path

from sluice.base.errors import SettingsError

_SHOWN = 300
"""Maximum length of the exception's message in the error [characters]."""

_MAX_FILES = 2000
"""Maximum number of files in the current folder that are searched for a similar name."""

_MIN_SIMILARITY = 0.8
"""Minimum similarity for a suggestion of another package; lower values give false suggestions."""

_LIBRARY_FOLDERS = tuple({sysconfig.get_path(n) for n in ("stdlib", "purelib", "platlib")})


def explain_import_error(
    error: BaseException, path: str, module_name: str, *, what: str
) -> SettingsError:
    """Return the error for a module that cannot be imported.

    Args:
        error: Exception raised by the import.
        path: Import path given by the user, 'module:Name'.
        module_name: Module in that path.
        what: Purpose of the object, for the message ("workload", "architecture").
    """
    prefix = f"The {what} '{path}' cannot be imported: "
    location = _user_line(error)
    if isinstance(error, ModuleNotFoundError) and error.name:
        if f"{module_name}.".startswith(f"{error.name}."):
            return _no_such_module(path, module_name, error.name, what)
        return _missing_import(prefix, location, error.name)
    if isinstance(error, SyntaxError) and error.filename:
        where = _format_line(error.filename, error.lineno or 1)
        line = f" in '{error.text.strip()[:80]}'" if error.text else ""
        return SettingsError(f"{prefix}{where}: {error.msg}{line}.", fix=f"Correct {where}.")
    if isinstance(error, SystemExit):
        return SettingsError(
            f"{prefix}{location or 'the module'} exits the process at import.",
            fix="Move code that belongs to a script under: if __name__ == '__main__'.",
        )
    message = " ".join(str(error).split())[:_SHOWN]
    described = f"{type(error).__name__}: {message}" if message else type(error).__name__
    if not location:
        return SettingsError(
            f"{prefix}{described}.", fix=f"Make 'import {module_name}' work, then start again."
        )
    return SettingsError(f"{prefix}{location} raised {described}.", fix=f"Correct {location}.")


def _no_such_module(path: str, module_name: str, missing: str, what: str) -> SettingsError:
    name = path.partition(":")[2]
    near = _find_similar(module_name)
    offer = f" Did you mean '{near}:{name}'?" if near else ""
    file = f"{module_name.rpartition('.')[2]}.py"
    return SettingsError(
        f"The {what} '{path}' cannot be imported: No module named '{missing}', neither in "
        f"{Path.cwd()} nor installed.{offer}",
        fix=f"Start in the folder of {file}, or check the spelling.",
    )


def _missing_import(prefix: str, location: str, missing: str) -> SettingsError:
    """Return the error for a missing dependency of the user's module."""
    package = missing.partition(".")[0]
    wants = f"{prefix}{location or 'it'} imports {missing}, "
    if package in sys.stdlib_module_names or ("." in missing and _is_installed(package)):
        return SettingsError(
            f"{wants}which the installed package {package} does not have.",
            fix="Check the spelling, or use a version of the package that has it.",
        )
    near = _find_similar(missing, min_similarity=_MIN_SIMILARITY)
    offer = f" Did you mean '{near}'?" if near else ""
    return SettingsError(
        f"{wants}which is not installed here.{offer}",
        # Does not suggest to install NAME with pip: that package may be another project.
        fix=f"Install the package that provides {package}. Its name may differ; see the project's "
        f"documentation. If {package}.py is your own file, start in the folder that contains it.",
    )


def _is_installed(package: str) -> bool:
    return package in sys.modules or PathFinder.find_spec(package) is not None


def _find_similar(module_name: str, *, min_similarity: float = 0.6) -> str:
    """Return the module in the current folder or a subfolder most similar to a name, or ''."""
    here = Path.cwd()
    files = islice((f for form in ("*.py", "*/*.py") for f in here.glob(form)), _MAX_FILES)
    known = sorted(".".join(f.relative_to(here).with_suffix("").parts) for f in files)
    last = module_name.rpartition(".")[2]
    same = [name for name in known if name.rpartition(".")[2] == last]
    near = same or difflib.get_close_matches(module_name, known, n=1, cutoff=min_similarity)
    return (near or [""])[0]


def _user_line(error: BaseException) -> str:
    """Return the innermost line outside libraries as 'file.py line 3'; '' if there is no such."""
    ours = str(Path(__file__).parent)
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        file = frame.f_code.co_filename
        if not file.startswith(("<", ours, *_LIBRARY_FOLDERS)):
            return _format_line(file, line)
    return ""


def _format_line(file: str, line: int) -> str:
    path, here = Path(file), Path.cwd()
    near = path.relative_to(here) if path.is_relative_to(here) else path
    return f"{near} line {line}"
