"""Finds where an exception was raised, and whether the user's code or Sluice raised it."""

import re
import sysconfig
import traceback
from collections.abc import Iterable
from types import FrameType
from typing import Literal

from sluice.base.errors import escape_unprintable

_MAX_MESSAGE_CHARS = 300
"""Maximum length of an exception's message in a description [characters]."""


_ENGINE_PACKAGES = frozenset(
    {"torch", "numpy", "pandas", "scipy", "importlib", "runpy", "threading"}
)
"""Packages whose lines are not reported, because these packages only call the user's code, or are
called by the user's code."""


_USER_CODE_PREFIXES = ("sluice.workloads.", "sluice.bench.poc.")
"""Prefixes of the modules of Sluice that count as user code, because they contain workloads."""


_LIBRARY_FOLDERS = tuple({sysconfig.get_path(n) for n in ("stdlib", "purelib", "platlib")})
"""Folders of the standard library and of installed packages."""


_CALL_MISMATCH = re.compile(r"\(\) (missing|takes|got an unexpected|got multiple)\b")
"""Matches Python's message for a call with arguments that a function does not accept."""


_CALLBACK_FUNCTIONS = frozenset({"_call_impl", "backward"})
"""Functions of torch through which Sluice runs a user's network, forward and backward."""


def is_sluice_defect(error: BaseException) -> bool:
    """Return whether an exception is a defect of Sluice, and not of the user's code.

    The innermost line of user code or of Sluice's code on the stack decides. Three kinds of
    exceptions count as errors of user code even if the stack has no line of user code: a call with
    arguments that the user's function does not accept, an exception inside a layer of torch, and
    an exception in the backward pass.
    """
    if isinstance(error, TypeError) and _CALL_MISMATCH.search(one_line_message(error)):
        return False
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        owner = _code_owner(frame)
        if owner in ("user", "sluice"):
            return owner == "sluice"
        if owner == "engine" and frame.f_code.co_name in _CALLBACK_FUNCTIONS:
            return False
    return False


def describe_error(error: BaseException) -> str:
    """Return the class and the message of an exception on one line; a long message is cut."""
    message = one_line_message(error)
    class_name = type(error).__name__
    if not message:
        return class_name
    ellipsis = "..." if len(message) > _MAX_MESSAGE_CHARS else ""
    return f"{class_name}: {message[:_MAX_MESSAGE_CHARS]}{ellipsis}"


def one_line_message(error: BaseException) -> str:
    """Return the message of an exception on one line; empty if its ``__str__`` fails."""
    try:
        text = str(error)
    except Exception:  # __str__ of a user's class may fail
        return ""
    return escape_unprintable(" ".join(text[: 20 * _MAX_MESSAGE_CHARS].split()))


def locate_error(error: BaseException, *, is_defect: bool = False) -> str:
    """Return "at file:line in function" for the line that explains the exception best.

    It is the innermost line of the user's code on the stack; without user code, the innermost line
    of Sluice; without both, the innermost line of a library.

    Args:
        error: The exception.
        is_defect: Prefer the innermost line of Sluice, because the exception is a defect of Sluice.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    return _innermost_location(reversed(frames), preferred="sluice" if is_defect else "user")


def locate_running_code(frame: FrameType | None) -> str:
    """Return "at file:line in function" for the innermost running line of user code.

    Without user code in the frames, the same rules apply as for ``locate_error``.
    """
    return _innermost_location(traceback.walk_stack(frame))


def _innermost_location(
    frames_innermost_first: Iterable[tuple[FrameType, int]],
    preferred: Literal["user", "sluice"] = "user",
) -> str:
    """Return the innermost line of the first owner that has a line in the frames.

    The order is the ``preferred`` owner, the user, Sluice, a library.
    """
    location_by_owner: dict[str, str] = {}
    for frame, line in frames_innermost_first:
        location = f"at {frame.f_code.co_filename}:{line} in {frame.f_code.co_qualname}"
        location_by_owner.setdefault(_code_owner(frame), location)
    for owner in (preferred, "user", "sluice", "library"):
        if owner in location_by_owner:
            return location_by_owner[owner]
    return "at an unknown location"


def _code_owner(frame: FrameType) -> Literal["user", "library", "sluice", "engine"]:
    """Return who owns the code of a frame; 'engine' for packages whose lines are not reported."""
    module = str(frame.f_globals.get("__name__", ""))
    package = module.partition(".")[0]
    if module.startswith(_USER_CODE_PREFIXES):
        return "user"
    if package == "sluice":
        return "sluice"
    if package in _ENGINE_PACKAGES or frame.f_code.co_filename.startswith("<"):
        return "engine"
    return "library" if frame.f_code.co_filename.startswith(_LIBRARY_FOLDERS) else "user"
