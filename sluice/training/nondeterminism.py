"""Which operations of a piece of code have no deterministic form, and where they are (REPRO-2)."""

import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from pydantic import Field

from sluice.base.error_location import place_of, user_place
from sluice.base.settings import Record

_NAMED = re.compile(r"(\S+) does not have a deterministic implementation")
_DEFAULTS = re.compile(r"(\w[\w ]*?) defaults to a non-deterministic algorithm")
_CUBLAS = re.compile(r"CUBLAS_WORKSPACE_CONFIG")


class NondeterministicOperation(Record):
    """One operation whose result may differ from run to run, at one line."""

    operation: str = Field(description="As torch names it, such as 'put_'.")
    place: str = Field(description="The user's innermost line: 'at file:line in function'.")
    num_calls: int = Field(ge=1, description="How often it was met there.")
    ended_the_run: bool = Field(
        description="The code itself asks torch for an error: what comes after was not seen."
    )


def nondeterministic_operations(fn: Callable[[], Any]) -> tuple[NondeterministicOperation, ...]:
    """Run ``fn`` and return the operations that torch has no deterministic form of.

    In order of their first call; empty when all is deterministic. torch's flags and the warning
    filters are put back. Other warnings go where they would have gone. In the backward pass the
    line is the one that calls ``backward``.

    Args:
        fn: What to run, such as one step of training, with its own inputs.

    Raises:
        Exception: Whatever ``fn`` raises that is not about a deterministic form.

    Assumes:
        No other thread changes warning filters or torch's flags meanwhile. torch knows: an
        extension's own kernel that does not declare itself is not found.
    """
    met: dict[tuple[str, str, bool], int] = {}

    def meet(operation: str, place: str, *, ended: bool) -> None:
        met[operation, place, ended] = met.get((operation, place, ended), 0) + 1

    with _warn_only(), warnings.catch_warnings():
        pass_on = warnings.showwarning

        def show(message: Any, *rest: Any) -> None:
            operation = _operation(str(message))
            if operation is None:
                pass_on(message, *rest)
            else:
                meet(operation, user_place(sys._getframe()), ended=False)

        warnings.showwarning = show  # type: ignore[assignment]
        # Only these: what the caller ignores or turns into errors stays as it is.
        warnings.filterwarnings("always", message="(?s).*deterministic")
        try:
            fn()
        except RuntimeError as error:
            operation = _operation(str(error))
            if operation is None:
                raise
            meet(operation, place_of(error), ended=True)
    return tuple(
        NondeterministicOperation(
            operation=operation, place=place, num_calls=num_calls, ended_the_run=ended
        )
        for (operation, place, ended), num_calls in met.items()
    )


def _operation(message: str) -> str | None:
    """Return the operation that a message of torch's names, or None when it is about another."""
    for pattern in (_NAMED, _DEFAULTS):
        found = pattern.search(message)
        if found:
            return found[1]
    if _CUBLAS.search(message):
        return "cuBLAS matrix product without CUBLAS_WORKSPACE_CONFIG"
    return None


@contextmanager
def _warn_only() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    always = torch.is_warn_always_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Some messages come once a process otherwise.
    torch.set_warn_always(True)
    try:
        yield
    finally:
        torch.set_warn_always(always)
        torch.use_deterministic_algorithms(before, warn_only=warn_only)
