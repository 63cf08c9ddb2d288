"""An exception of the user's code, of Sluice's own, or of an allocator, as a message."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sluice.base.error_location import is_own_defect, message_of, place_of, told
from sluice.base.errors import ContractError, OutOfMemory, SluiceError, TrainingFailed
from sluice.base.out_of_memory import is_out_of_memory, out_of_memory
from sluice.findings.finding import Finding
from sluice.findings.responses import FailureKind, respond

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
    if isinstance(error, RuntimeError | ValueError) and _SHAPE_WORDS.search(message_of(error)):
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
