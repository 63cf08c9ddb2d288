"""Turns exceptions of user code, bugs in Sluice and lack of memory into messages with a fix."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sluice.base.error_location import (
    describe_error,
    is_sluice_defect,
    locate_error,
    one_line_message,
)
from sluice.base.errors import ContractError, OutOfMemory, SluiceError, TrainingFailed
from sluice.base.out_of_memory import is_out_of_memory, out_of_memory_error
from sluice.findings.catalogue import FaultName, find_fault
from sluice.findings.check_outcome import CheckOutcome

_SHAPE_WORDS = re.compile(r"\b(size|sizes|shape|shapes|dimension|dimensions|dim|input_size)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorExplanation:
    """Message, likely cause and fix for an exception."""

    fault: FaultName
    what: str
    cause: str
    fix: str


def explain_error(error: BaseException, *, work: str) -> ErrorExplanation:
    """Explain an exception to the user and decide whether user code or Sluice is at fault.

    Args:
        error: Any exception except a SluiceError, which contains its explanation.
        work: Name of the work that ran, for the message about exhausted memory.
    """
    if is_out_of_memory(error):
        memory_error = out_of_memory_error(error, work)
        return ErrorExplanation(
            fault="out of memory",
            what=memory_error.what,
            cause=memory_error.cause,
            fix=memory_error.fix,
        )
    fault: FaultName = "user code raised"
    if isinstance(error, RuntimeError | ValueError) and _SHAPE_WORDS.search(
        one_line_message(error)
    ):
        fault = "shape mismatch"
    elif is_sluice_defect(error):
        fault = "bug in Sluice"
    entry = find_fault(fault)
    location = locate_error(error, is_defect=fault == "bug in Sluice")
    return ErrorExplanation(
        fault=fault,
        what=f"{describe_error(error)} (raised {location}).",
        cause=entry.cause,
        fix=entry.fix,
    )


def outcome_from_error(error: BaseException) -> CheckOutcome:
    """Return a failed check outcome that names the exception and the line that raised it.

    The cause and the fix of a SluiceError are kept. A RuntimeError or ValueError about sizes is
    reported as a shape mismatch.
    """
    if isinstance(error, SluiceError):
        fault: FaultName | None = "out of memory" if isinstance(error, OutOfMemory) else None
        return CheckOutcome(
            outcome="fail", summary=error.what, fault=fault, cause=error.cause, fix=error.fix
        )
    explanation = explain_error(error, work="this check")
    return CheckOutcome(
        outcome="fail",
        summary=explanation.what,
        fault=explanation.fault,
        cause=explanation.cause,
        fix=explanation.fix,
    )


@contextmanager
def wrap_user_errors(what: str) -> Iterator[None]:
    """Convert exceptions of user code into a ContractError that names the line.

    Args:
        what: Name of the code that runs in the block; the message begins with it.

    Raises:
        ContractError: The block raised an exception that is not a SluiceError.
        OutOfMemory: An allocator refused a request.
    """
    try:
        yield
    except SluiceError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise out_of_memory_error(error, what) from error
        explanation = explain_error(error, work=what)
        fix = (
            "Correct the named line and start again."
            if explanation.fault == "user code raised"
            else explanation.fix
        )
        raise ContractError(
            f"{what} raised {explanation.what}", cause=explanation.cause, fix=fix
        ) from error


def training_error(error: Exception) -> SluiceError:
    """Return the error that ends a training: out of memory, a bug in Sluice, or user code.

    Args:
        error: Any exception except a SluiceError.
    """
    explanation = explain_error(error, work="a training")
    if explanation.fault == "out of memory":
        return OutOfMemory(explanation.what, cause=explanation.cause, fix=explanation.fix)
    if explanation.fault == "bug in Sluice":
        return TrainingFailed(explanation.what, cause=explanation.cause, fix=explanation.fix)
    return TrainingFailed(
        explanation.what,
        cause="The code of the workload or the model raised an exception during a fold run.",
        fix="Correct the named line. The POC gate reports most of these errors within seconds.",
    )
