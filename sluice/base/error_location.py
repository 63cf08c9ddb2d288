"""Where an exception was raised, and whether the user's code or Sluice's own raised it."""

import re
import sysconfig
import traceback
from collections.abc import Iterable
from types import FrameType
from typing import Literal

from sluice.base.errors import escape_unprintable

_SHOWN = 300
"""Characters of an exception's own message that are shown."""


_ENGINES = frozenset({"torch", "numpy", "pandas", "scipy", "importlib", "runpy", "threading"})
"""Libraries that call the user's code or are called by it; their lines are not reported."""


_SHIPPED = ("sluice.workloads.", "sluice.bench.poc.")
"""Shipped workloads count as user code."""


_LIBRARY_FOLDERS = tuple({sysconfig.get_path(n) for n in ("stdlib", "purelib", "platlib")})


_CALL_WORDS = re.compile(r"\(\) (missing|takes|got an unexpected|got multiple)\b")
"""Python's message when a call does not fit a function's parameters."""


_CALLS_BACK = frozenset({"_call_impl", "backward"})
"""Functions of torch through which Sluice runs a user's network, forward and backward."""


def is_own_defect(error: BaseException) -> bool:
    """Return whether Sluice's own code raised, and nothing of the user's that it called.

    A call that does not fit the user's function, an exception inside a network's layers and one in
    the backward pass are the user's, although no line of the user's is on the stack.
    """
    if isinstance(error, TypeError) and _CALL_WORDS.search(message_of(error)):
        return False
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        owner = _owner(frame)
        if owner in ("user", "sluice"):
            return owner == "sluice"
        if owner == "engine" and frame.f_code.co_name in _CALLS_BACK:
            return False
    return False


def describe_error(error: BaseException) -> str:
    """Return the kind of exception and its message on one line, cut where it gets long."""
    message = message_of(error)
    kind = type(error).__name__
    return (
        f"{kind}: {message[:_SHOWN]}{'...' if len(message) > _SHOWN else ''}" if message else kind
    )


def message_of(error: BaseException) -> str:
    """Return the message of an exception on one line; empty when the class fails to give one."""
    try:
        text = str(error)
    except Exception:  # the user's own class may fail to describe itself
        return ""
    return escape_unprintable(" ".join(text[: 20 * _SHOWN].split()))


def locate_error(error: BaseException, *, defect: bool = False) -> str:
    """Return "at file:line in function": the user's innermost line, else ours or a library's.

    Args:
        error: The exception.
        defect: Name Sluice's innermost line instead, because it raised.
    """
    lines = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    return _place(reversed(lines), first="sluice" if defect else "user")


def locate_running_code(frame: FrameType | None) -> str:
    """Return "at file:line in function" of the user's innermost line that is running now."""
    return _place(traceback.walk_stack(frame))


def _place(
    innermost_first: Iterable[tuple[FrameType, int]], first: Literal["user", "sluice"] = "user"
) -> str:
    """Return the innermost line of ``first``, else of the user's, of ours, of a library's."""
    found: dict[str, str] = {}
    for frame, line in innermost_first:
        place = f"at {frame.f_code.co_filename}:{line} in {frame.f_code.co_qualname}"
        found.setdefault(_owner(frame), place)
    for owner in (first, "user", "sluice", "library"):
        if owner in found:
            return found[owner]
    return "at an unknown place"


def _owner(frame: FrameType) -> Literal["user", "library", "sluice", "engine"]:
    module = str(frame.f_globals.get("__name__", ""))
    package = module.partition(".")[0]
    if module.startswith(_SHIPPED):
        return "user"
    if package == "sluice":
        return "sluice"
    if package in _ENGINES or frame.f_code.co_filename.startswith("<"):
        return "engine"
    return "library" if frame.f_code.co_filename.startswith(_LIBRARY_FOLDERS) else "user"
