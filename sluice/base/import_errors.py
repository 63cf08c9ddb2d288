"""Explains why a user's module cannot be imported, with a fix for each cause."""

import difflib
import sys
import sysconfig
import traceback
from importlib.machinery import PathFinder
from itertools import islice
from pathlib import Path

from sluice.base.errors import SettingsError

_MAX_MESSAGE_CHARS = 300
"""Maximum length of the exception's message in the error [characters]."""

_MAX_FILES = 2000
"""Maximum number of files in the working folder and its subfolders whose names are compared."""

_MIN_SIMILARITY = 0.8
"""A module in the working folder is suggested for a missing module only if their names have at
least this similarity (``difflib``, 0 to 1)."""

_LIBRARY_FOLDERS = tuple({sysconfig.get_path(n) for n in ("stdlib", "purelib", "platlib")})
"""Folders of the standard library and of installed packages."""


def explain_import_error(
    error: BaseException, path: str, module_name: str, *, what: str
) -> SettingsError:
    """Return the error for a module that cannot be imported.

    Args:
        error: Exception that the import raised.
        path: Import path from the user, 'module:Name'.
        module_name: The module of this path.
        what: Purpose of the object, for the message ("workload", "architecture").
    """
    prefix = f"The {what} '{path}' cannot be imported: "
    location = _user_line(error)
    if isinstance(error, ModuleNotFoundError) and error.name:
        if f"{module_name}.".startswith(f"{error.name}."):
            return _module_not_found_error(path, module_name, error.name, what)
        return _missing_dependency_error(prefix, location, error.name)
    if isinstance(error, SyntaxError) and error.filename:
        location = _format_line(error.filename, error.lineno or 1)
        code_text = f" in '{error.text.strip()[:80]}'" if error.text else ""
        return SettingsError(
            f"{prefix}{location}: {error.msg}{code_text}.", fix=f"Correct {location}."
        )
    if isinstance(error, SystemExit):
        return SettingsError(
            f"{prefix}{location or 'the module'} exits the process at import.",
            fix="Move code that belongs to a script under: if __name__ == '__main__'.",
        )
    message = " ".join(str(error).split())[:_MAX_MESSAGE_CHARS]
    description = f"{type(error).__name__}: {message}" if message else type(error).__name__
    if not location:
        return SettingsError(
            f"{prefix}{description}.", fix=f"Make 'import {module_name}' work, then start again."
        )
    return SettingsError(f"{prefix}{location} raised {description}.", fix=f"Correct {location}.")


def _module_not_found_error(
    path: str, module_name: str, missing_module: str, what: str
) -> SettingsError:
    """Return the error for a module of the user that does not exist."""
    name = path.partition(":")[2]
    similar_module = _find_similar(module_name)
    suggestion = f" Did you mean '{similar_module}:{name}'?" if similar_module else ""
    package, dot, _ = module_name.partition(".")
    folder_text = f"the folder that contains {package}/" if dot else f"the folder of {package}.py"
    return SettingsError(
        f"The {what} '{path}' cannot be imported: No module named '{missing_module}', neither in "
        f"{Path.cwd()} nor installed.{suggestion}",
        fix=f"Start in {folder_text}, or check the spelling.",
    )


def _missing_dependency_error(prefix: str, location: str, missing_module: str) -> SettingsError:
    """Return the error for a missing dependency of the user's module."""
    package = missing_module.partition(".")[0]
    imports_text = f"{prefix}{location or 'it'} imports {missing_module}, "
    if missing_module in sys.stdlib_module_names:
        return SettingsError(
            f"{imports_text}a module of the standard library that this Python does not have.",
            cause="The module exists only on other systems, or belongs to a package of the system "
            "that is not installed.",
            fix=f"Install a Python that has {missing_module}, or do not import this module.",
        )
    if package in sys.stdlib_module_names or ("." in missing_module and _is_installed(package)):
        return SettingsError(
            f"{imports_text}which the installed package {package} does not have.",
            fix="Check the spelling, or use a version of the package that has it.",
        )
    similar_module = _find_similar(missing_module, min_similarity=_MIN_SIMILARITY)
    suggestion = f" Did you mean '{similar_module}'?" if similar_module else ""
    return SettingsError(
        f"{imports_text}which is not installed here.{suggestion}",
        # The fix names no package to install with pip, because the package with the name of the
        # module may be another project.
        fix=f"Install the package that provides {package}; its name may differ from {package}. If "
        f"{package}.py is your own file, start in the folder that contains it.",
    )


def _is_installed(package: str) -> bool:
    return package in sys.modules or PathFinder.find_spec(package) is not None


def _find_similar(module_name: str, *, min_similarity: float = 0.6) -> str:
    """Return the module in the working folder or a subfolder with the most similar name, or ''."""
    cwd = Path.cwd()
    all_files = (file for pattern in ("*.py", "*/*.py") for file in cwd.glob(pattern))
    files = islice(all_files, _MAX_FILES)
    modules = sorted(".".join(file.relative_to(cwd).with_suffix("").parts) for file in files)
    last_part = module_name.rpartition(".")[2]
    names_with_last_part = [name for name in modules if name.rpartition(".")[2] == last_part]
    similar_names = names_with_last_part or difflib.get_close_matches(
        module_name, modules, n=1, cutoff=min_similarity
    )
    return (similar_names or [""])[0]


def _user_line(error: BaseException) -> str:
    """Return the innermost line of user code as 'file.py line 3'; '' without user code."""
    this_package = str(Path(__file__).parent)
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        file = frame.f_code.co_filename
        if not file.startswith(("<", this_package, *_LIBRARY_FOLDERS)):
            return _format_line(file, line)
    return ""


def _format_line(file: str, line: int) -> str:
    """Return 'file.py line 3', with a path relative to the working folder if the file is in it."""
    path, cwd = Path(file), Path.cwd()
    display_path = path.relative_to(cwd) if path.is_relative_to(cwd) else path
    return f"{display_path} line {line}"
