"""Detects out-of-memory errors and converts them to errors with advice on what to change."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from sluice.base.error_location import describe_error, locate_error
from sluice.base.errors import OutOfMemory
from sluice.base.memory import available_bytes

_PHRASES = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Phrases by which torch reports exhausted memory in a plain RuntimeError."""

_REQUEST = re.compile(r"allocate (\d[\d.]*) ?(bytes|[KMGTP]i?B)")
_GIB = 2**30


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception reports that the memory of any device is exhausted."""
    if isinstance(error, OutOfMemory | MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _PHRASES)


@contextmanager
def explain_out_of_memory(work: str, fix: Callable[[], str]) -> Iterator[None]:
    """Convert an out-of-memory error inside the block to an ``OutOfMemory`` that names the work.

    Args:
        work: What the block computes, with its number of rows.
        fix: Returns the first change to try. Called only when memory is exhausted.

    Raises:
        OutOfMemory: An allocator rejected a request. Other exceptions pass unchanged.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise out_of_memory_error(error, work, fix=fix()) from error


def out_of_memory_error(error: BaseException, work: str, *, fix: str = "") -> OutOfMemory:
    """Return an error with the size of the request, the free memory and the first change to try.

    Args:
        error: Exception raised by the allocator.
        work: What was computed, with its number of rows where known.
        fix: First change to try. Empty: the advice for a training with unknown settings.
    """
    return OutOfMemory(
        f"Out of memory in {work}: {describe_error(error).rstrip('.')} "
        f"(raised {locate_error(error)}). {_amounts(str(error))}",
        cause="The batch's activations, the weights with their gradients and optimizer moments, "
        "and the loaded rows together exceed the available memory.",
        fix=fix or memory_advice(MEMORY_SETTINGS),
    )


MEMORY_SETTINGS = (
    "a smaller training.micro_batch_rows",
    "training.precision: bf16",
    "training.recompute_activations: true",
)
"""Setting changes that reduce memory, in the order to try them."""


def memory_advice(steps: Sequence[str]) -> str:
    """Return the advice for exhausted memory, beginning with the setting changes to try.

    Args:
        steps: Setting changes that are still possible; may be empty.
    """
    tried = f"Try in this order: {'; '.join(steps)}. " if steps else ""
    return (
        f"{tried}micro_batch_rows accumulates gradients and gives the same gradient as the full "
        "batch; a network with batch normalization needs a smaller training.batch_rows instead. "
        "'sluice doctor batch-size PIPELINE' measures the largest batch that fits. Otherwise "
        "reduce the width or depth of the network, or use a machine with more memory."
    )


def prediction_memory_advice() -> str:
    """Return the advice for predictions (without gradients) that run out of memory."""
    return (
        "Predictions are always computed in fp32 and with this number of rows; no training "
        "setting changes that. Use a smaller network, return smaller outputs from forward(), or "
        "use a device with more memory (training.device: cpu)."
    )


def _amounts(message: str) -> str:
    found = _REQUEST.search(message)
    requested = ""
    if found:
        number, unit = found.groups()
        amount = f"{float(number) / _GIB:.2f} GiB" if unit == "bytes" else f"{number} {unit}"
        requested = f"One allocation requested {amount}; "
    return f"{requested or 'There are '}{_free(message)}."


def _free(message: str) -> str:
    if "CUDA" in message and torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return f"{free / _GIB:.2f} of {total / _GIB:.2f} GiB of GPU memory were free"
    return f"{available_bytes() / _GIB:.2f} GiB of main memory were free"
