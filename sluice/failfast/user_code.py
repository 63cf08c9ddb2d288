"""An exception in the user's model, loss or workload, told as a finding."""

import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Literal

import torch

from sluice.errors import ContractError, SluiceError, writable
from sluice.failfast.responses import FailureKind, respond
from sluice.failfast.result import Finding

_SHOWN = 300
"""Characters of an exception's own message that are shown."""

_ENGINES = frozenset({"torch", "numpy", "pandas", "scipy", "importlib", "runpy", "threading"})
"""Where the user's code ends up; the line that went there is the one to name."""

_SHIPPED = ("sluice.workloads.", "sluice.failfast.benchmark.")
"""Workloads that come with Sluice stand where a user's would."""

_LIBRARY_FOLDERS = tuple({sysconfig.get_path(n) for n in ("stdlib", "purelib", "platlib")})

_MEMORY_WORDS = "can't allocate memory"
"""What torch says of the CPU's memory, in a plain RuntimeError."""

_SHAPE_WORDS = re.compile(r"\b(size|sizes|shape|shapes|dimension|dimensions|dim|input_size)\b")


def finding_from(error: BaseException) -> Finding:
    """Return a failed finding that names the exception and the line of the user's code.

    Our own errors keep their cause, if any, and fix. A torch error about sizes is a shape mismatch.
    """
    if isinstance(error, SluiceError):
        return Finding(outcome="fail", summary=error.what, cause=error.cause, fix=error.fix)
    message = _message(error)
    kind: FailureKind = "code raised"
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or _MEMORY_WORDS in message:
        kind = "out of memory"
    elif isinstance(error, (RuntimeError, ValueError)) and _SHAPE_WORDS.search(message):
        kind = "shape mismatch"
    return Finding(
        outcome="fail",
        summary=f"{told(error)} (raised {place_of(error)}).",
        kind=kind,
    )


@contextmanager
def users_code(what: str) -> Iterator[None]:
    """Turn an exception of the user's own code into a message with its place.

    Args:
        what: What runs in the block, to begin the message with.

    Raises:
        ContractError: Anything but our own errors was raised.
    """
    try:
        yield
    except SluiceError:
        raise
    except Exception as error:
        raise ContractError(
            f"{what} raised {told(error)} ({place_of(error)}).",
            cause=respond("code raised").cause,
            fix="Correct that line and start again.",
        ) from error


def told(error: BaseException) -> str:
    """Return the kind of exception and its message on one line, cut where it gets long."""
    message = _message(error)
    kind = type(error).__name__
    return (
        f"{kind}: {message[:_SHOWN]}{'...' if len(message) > _SHOWN else ''}" if message else kind
    )


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # the user's own class may fail to describe itself
        return ""
    return writable(" ".join(text[: 20 * _SHOWN].split()))


def place_of(error: BaseException) -> str:
    """Return "at file:line in function": the user's innermost line, else ours or a library's."""
    lines = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    return _place(reversed(lines))


def user_place(frame: FrameType | None) -> str:
    """Return "at file:line in function" of the user's innermost line that is running now."""
    return _place(traceback.walk_stack(frame))


def _place(innermost_first: Iterable[tuple[FrameType, int]]) -> str:
    """Return the first line of the user's own code, else of ours, else of a library's."""
    found: dict[str, str] = {}
    for frame, line in innermost_first:
        place = f"at {frame.f_code.co_filename}:{line} in {frame.f_code.co_qualname}"
        found.setdefault(_owner(frame), place)
    for owner in ("user", "sluice", "library"):
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
