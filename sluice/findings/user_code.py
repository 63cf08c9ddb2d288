"""An exception of the user's code, of Sluice's own, or of an allocator, as a message."""

import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Literal

from sluice.base.errors import (ContractError, OutOfMemory, SluiceError, TrainingFailed, writable)
from sluice.findings.responses import (FailureKind, respond)
from sluice.failfast.result import Finding
from sluice.base.out_of_memory import (is_out_of_memory, out_of_memory)

_SHOWN = 300
"""Characters of an exception's own message that are shown."""

_ENGINES = frozenset({"torch", "numpy", "pandas", "scipy", "importlib", "runpy", "threading"})
"""Where the user's code ends up; the line that went there is the one to name."""

_SHIPPED = ("sluice.workloads.", "sluice.bench.poc.")
"""Workloads that come with Sluice stand where a user's would."""

_LIBRARY_FOLDERS = tuple({sysconfig.get_path(n) for n in ("stdlib", "purelib", "platlib")})

_CALL_WORDS = re.compile(r"\(\) (missing|takes|got an unexpected|got multiple)\b")
"""Python's message when a call does not fit a function's parameters."""

_CALLS_BACK = frozenset({"_call_impl", "backward"})
"""Functions of torch through which Sluice runs a user's network, forward and backward."""

_SHAPE_WORDS = re.compile(r"\b(size|sizes|shape|shapes|dimension|dimensions|dim|input_size)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What an exception says, its likely cause and what to do."""

    kind: FailureKind
    what: str
    cause: str
    fix: str


def explain(error: BaseException, *, work: str) -> Explanation:
    """Return what an exception means for the user: the one place that decides whose defect it is.

    Args:
        error: Any exception but our own errors, which explain themselves.
        work: What ran, to name where memory is exhausted.
    """
    if is_out_of_memory(error):
        refused = out_of_memory(error, work)
        return Explanation(
            kind="out of memory", what=refused.what, cause=refused.cause, fix=refused.fix
        )
    kind: FailureKind = "code raised"
    if isinstance(error, RuntimeError | ValueError) and _SHAPE_WORDS.search(_message(error)):
        kind = "shape mismatch"
    elif is_own_defect(error):
        kind = "defect of Sluice"
    answer = respond(kind)
    return Explanation(
        kind=kind,
        what=f"{told(error)} (raised {place_of(error, defect=kind == 'defect of Sluice')}).",
        cause=answer.cause,
        fix=answer.fix,
    )


def finding_from(error: BaseException) -> Finding:
    """Return a failed finding that names the exception and the line of the user's code.

    Our own errors keep their cause, if any, and fix. A torch error about sizes is a shape mismatch.
    """
    if isinstance(error, SluiceError):
        kind: FailureKind | None = "out of memory" if isinstance(error, OutOfMemory) else None
        return Finding(
            outcome="fail", summary=error.what, kind=kind, cause=error.cause, fix=error.fix
        )
    known = explain(error, work="this check")
    return Finding(
        outcome="fail", summary=known.what, kind=known.kind, cause=known.cause, fix=known.fix
    )


@contextmanager
def users_code(what: str) -> Iterator[None]:
    """Turn an exception of the user's own code into a message with its place.

    Args:
        what: What runs in the block, to begin the message with.

    Raises:
        ContractError: Anything but our own errors was raised.
        OutOfMemory: An allocator refused a request.
    """
    try:
        yield
    except SluiceError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise out_of_memory(error, what) from error
        known = explain(error, work=what)
        fix = "Correct that line and start again." if known.kind == "code raised" else known.fix
        raise ContractError(f"{what} raised {known.what}", cause=known.cause, fix=fix) from error


def training_error(error: Exception) -> SluiceError:
    """Return the error that ends a training: exhausted memory, a defect of Sluice, or user code.

    Args:
        error: Any exception but our own errors.
    """
    known = explain(error, work="a training")
    if known.kind == "out of memory":
        return OutOfMemory(known.what, cause=known.cause, fix=known.fix)
    if known.kind == "defect of Sluice":
        return TrainingFailed(known.what, cause=known.cause, fix=known.fix)
    return TrainingFailed(
        known.what,
        cause="The code of the workload or the model raised while a unit was fitted.",
        fix="Correct the named line; the POC gate shows most such errors within seconds.",
    )


def is_own_defect(error: BaseException) -> bool:
    """Return whether Sluice's own code raised, and nothing of the user's that it called.

    A call that does not fit the user's function, an exception inside a network's layers and one in
    the backward pass are the user's, although no line of the user's is on the stack.
    """
    if isinstance(error, TypeError) and _CALL_WORDS.search(_message(error)):
        return False
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        owner = _owner(frame)
        if owner in ("user", "sluice"):
            return owner == "sluice"
        if owner == "engine" and frame.f_code.co_name in _CALLS_BACK:
            return False
    return False


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


def place_of(error: BaseException, *, defect: bool = False) -> str:
    """Return "at file:line in function": the user's innermost line, else ours or a library's.

    Args:
        error: The exception.
        defect: Name Sluice's innermost line instead, because it raised.
    """
    lines = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    return _place(reversed(lines), first="sluice" if defect else "user")


def user_place(frame: FrameType | None) -> str:
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
