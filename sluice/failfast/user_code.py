"""An exception in the user's model, loss or workload, told as a finding."""

import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from sluice.errors import ContractError, SluiceError
from sluice.failfast.responses import FailureKind
from sluice.failfast.result import Finding

_NOT_THEIRS = frozenset({"torch", "numpy", "pandas", "scipy", "importlib", "sluice"})
_SHAPE_WORDS = re.compile(r"\b(size|sizes|shape|shapes|dimension|dimensions|dim|input_size)\b")


def finding_from(error: Exception) -> Finding:
    """Return a failed finding that names the exception and the line of the user's code.

    Our own errors keep their cause and fix. A torch error about sizes is a shape mismatch.
    """
    if isinstance(error, SluiceError):
        return Finding(
            outcome="fail", summary=error.what, kind="code raised", cause=error.cause, fix=error.fix
        )
    message = " ".join(str(error).split())
    kind: FailureKind = "code raised"
    if isinstance(error, (RuntimeError, ValueError)) and _SHAPE_WORDS.search(message):
        kind = "shape mismatch"
    return Finding(
        outcome="fail",
        summary=f"{type(error).__name__}: {message[:300]} (raised {place_of(error)}).",
        kind=kind,
    )


@contextmanager
def users_code(what: str) -> Iterator[None]:
    """Turn an exception of the user's own code into a message with its place.

    Args:
        what: The method that runs in the block, for the message.

    Raises:
        ContractError: Anything but our own errors was raised.
    """
    try:
        yield
    except SluiceError:
        raise
    except Exception as error:
        raise ContractError(
            f"{what} of the workload raised {type(error).__name__}: {error} ({place_of(error)}).",
            fix="Correct that line and start again.",
        ) from error


def place_of(error: BaseException) -> str:
    """Return "at file:line in function": the user's innermost line, else our innermost."""
    theirs = _innermost(error.__traceback__, lambda package: package not in _NOT_THEIRS)
    ours = _innermost(error.__traceback__, lambda package: package == "sluice")
    return theirs or ours or "at an unknown place"


def _innermost(trace: TracebackType | None, wanted: Callable[[str], bool]) -> str:
    place = ""
    for frame, line in traceback.walk_tb(trace):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if wanted(package):
            place = f"at {frame.f_code.co_filename}:{line} in {frame.f_code.co_qualname}"
    return place
