"""Why a user's module does not import, and what to do about that cause."""

import difflib
import sys
import sysconfig
import traceback
from importlib.machinery import PathFinder
from itertools import islice
from pathlib import Path

from sluice.base.errors import SettingsError

_SHOWN = 300
"""Characters of an exception's own message that are shown."""

_MOST_FILES = 2000
"""Files of the current folder that are looked at for a like name."""

_SAME_WORD = 0.8
"""How alike two names are when one is a slip of the other; a missing package resembles many."""

_LIBRARY_FOLDERS = tuple({sysconfig.get_path(n) for n in ("stdlib", "purelib", "platlib")})


def explain_failure(
    error: BaseException, path: str, module_name: str, *, what: str
) -> SettingsError:
    """Return the message for a module that did not import.

    Args:
        error: What its import raised.
        path: What the user named, as 'module:Name'.
        module_name: The module's part of it.
        what: What it is for, to begin the message with.
    """
    said = f"The {what} '{path}' does not import: "
    place = _place(error)
    if isinstance(error, ModuleNotFoundError) and error.name:
        if f"{module_name}.".startswith(f"{error.name}."):
            return _no_such_module(path, module_name, error.name, what)
        return _missing_import(said, place, error.name)
    if isinstance(error, SyntaxError) and error.filename:
        where = _line(error.filename, error.lineno or 1)
        line = f" in '{error.text.strip()[:80]}'" if error.text else ""
        return SettingsError(f"{said}{where}: {error.msg}{line}.", fix=f"Correct {where}.")
    if isinstance(error, SystemExit):
        return SettingsError(
            f"{said}{place or 'the module'} ends the process while it is imported.",
            fix="Put what is a script's own under: if __name__ == '__main__'.",
        )
    message = " ".join(str(error).split())[:_SHOWN]
    told = f"{type(error).__name__}: {message}" if message else type(error).__name__
    if not place:
        return SettingsError(
            f"{said}{told}.", fix=f"Make 'import {module_name}' work, then start again."
        )
    return SettingsError(f"{said}{place} raised {told}.", fix=f"Correct {place}.")


def _no_such_module(path: str, module_name: str, missing: str, what: str) -> SettingsError:
    name = path.partition(":")[2]
    near = _like(module_name)
    offer = f" Did you mean '{near}:{name}'?" if near else ""
    file = f"{module_name.rpartition('.')[2]}.py"
    return SettingsError(
        f"The {what} '{path}' does not import: No module named '{missing}', neither in "
        f"{Path.cwd()} nor installed.{offer}",
        fix=f"Start in the folder of {file}, or check the spelling.",
    )


def _missing_import(said: str, place: str, missing: str) -> SettingsError:
    """A module that the user's module needs, not the one that was named."""
    package = missing.partition(".")[0]
    wants = f"{said}{place or 'it'} imports {missing}, "
    if package in sys.stdlib_module_names or ("." in missing and _is_there(package)):
        return SettingsError(
            f"{wants}which the package {package} here does not have.",
            fix="Check the spelling, or use the version of the package that has it.",
        )
    near = _like(missing, least=_SAME_WORD)
    offer = f" Did you mean '{near}'?" if near else ""
    return SettingsError(
        f"{wants}which is not installed here.{offer}",
        # No 'pip install' of it: a package of that name may be somebody else's.
        fix=f"Install the package that provides {package}; it may have another name, so take it "
        f"from that project's documentation. If it is a file of yours, start in the folder that "
        f"holds {package}.py.",
    )


def _is_there(package: str) -> bool:
    return package in sys.modules or PathFinder.find_spec(package) is not None


def _like(module_name: str, *, least: float = 0.6) -> str:
    """Return the module in the current folder or one below that is most like a name, or ''."""
    here = Path.cwd()
    files = islice((f for form in ("*.py", "*/*.py") for f in here.glob(form)), _MOST_FILES)
    known = sorted(".".join(f.relative_to(here).with_suffix("").parts) for f in files)
    last = module_name.rpartition(".")[2]
    same = [name for name in known if name.rpartition(".")[2] == last]
    return (same or difflib.get_close_matches(module_name, known, n=1, cutoff=least) or [""])[0]


def _place(error: BaseException) -> str:
    """Return 'file.py line 3', the innermost line that is no library's; '' when there is none."""
    ours = str(Path(__file__).parent)
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        file = frame.f_code.co_filename
        if not file.startswith(("<", ours, *_LIBRARY_FOLDERS)):
            return _line(file, line)
    return ""


def _line(file: str, line: int) -> str:
    path, here = Path(file), Path.cwd()
    near = path.relative_to(here) if path.is_relative_to(here) else path
    return f"{near} line {line}"
