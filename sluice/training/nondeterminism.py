"""Finds operations without a deterministic implementation, and the code lines that call them."""

import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from pydantic import Field

from sluice.base.error_location import locate_error, locate_running_code
from sluice.base.settings import Record

_NO_IMPLEMENTATION_PATTERN = re.compile(r"(\S+) does not have a deterministic implementation")
_NONDETERMINISTIC_DEFAULT_PATTERN = re.compile(
    r"(\w[\w ]*?) defaults to a non-deterministic algorithm"
)
_CUBLAS_PATTERN = re.compile(r"CUBLAS_WORKSPACE_CONFIG")


class NondeterministicOperation(Record):
    """An operation whose result may differ from run to run, and the code line of its call."""

    operation: str = Field(description="Name of the operation in torch, such as 'put_'.")
    place: str = Field(description="Innermost line of user code: 'at file:line in function'.")
    num_calls: int = Field(ge=1, description="Number of calls at this line.")
    ended_the_run: bool = Field(
        description="Whether torch raised an error there, so that later operations were not "
        "checked."
    )


def find_nondeterministic_operations(
    fn: Callable[[], Any],
) -> tuple[NondeterministicOperation, ...]:
    """Run ``fn`` and return the operations for which torch has no deterministic implementation.

    The operations are in the order of their first call. For an operation of the backward pass, the
    reported line is the call of ``backward``. torch's flags and the warning filters are restored.
    Warnings about other topics are shown as usual.

    Args:
        fn: Function to run, such as one training step, with its own inputs.

    Raises:
        Exception: Any exception of ``fn`` that is not about determinism.

    Assumes:
        No other thread changes warning filters or torch's flags during the call. Every extension
        declares its nondeterministic kernels to torch; undeclared kernels are not found.
    """
    calls: dict[tuple[str, str, bool], int] = {}

    def record(operation: str, place: str, *, has_ended_run: bool) -> None:
        calls[operation, place, has_ended_run] = calls.get((operation, place, has_ended_run), 0) + 1

    with _warn_about_nondeterminism(), warnings.catch_warnings():
        original_showwarning = warnings.showwarning

        def show(message: Any, *rest: Any) -> None:
            operation = _operation_name(str(message))
            if operation is None:
                original_showwarning(message, *rest)
            else:
                record(operation, locate_running_code(sys._getframe()), has_ended_run=False)

        warnings.showwarning = show  # type: ignore[assignment]
        # The filter matches only these warnings, so that other filters of the caller have effect.
        warnings.filterwarnings("always", message="(?s).*deterministic")
        try:
            fn()
        except RuntimeError as error:
            operation = _operation_name(str(error))
            if operation is None:
                raise
            record(operation, locate_error(error), has_ended_run=True)
    return tuple(
        NondeterministicOperation(
            operation=operation, place=place, num_calls=num_calls, ended_the_run=has_ended_run
        )
        for (operation, place, has_ended_run), num_calls in calls.items()
    )


def _operation_name(message: str) -> str | None:
    """Return the operation that a message of torch names, or None for another message."""
    for pattern in (_NO_IMPLEMENTATION_PATTERN, _NONDETERMINISTIC_DEFAULT_PATTERN):
        match = pattern.search(message)
        if match:
            return match[1]
    if _CUBLAS_PATTERN.search(message):
        return "cuBLAS matrix product without CUBLAS_WORKSPACE_CONFIG"
    return None


@contextmanager
def _warn_about_nondeterminism() -> Iterator[None]:
    """Let torch warn at every call of a nondeterministic operation, instead of raising."""
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    was_warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    was_warn_always = torch.is_warn_always_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    # By default, torch shows some of these warnings only once per process.
    torch.set_warn_always(True)
    try:
        yield
    finally:
        torch.set_warn_always(was_warn_always)
        torch.use_deterministic_algorithms(was_deterministic, warn_only=was_warn_only)
