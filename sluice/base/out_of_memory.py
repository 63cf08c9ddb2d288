"""Detects out-of-memory errors and converts them to errors with advice on what to change."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from sluice.base.error_location import describe_error, locate_error
from sluice.base.errors import OutOfMemory
from sluice.base.memory import available_bytes

_ERROR_PHRASES = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Phrases in a RuntimeError of torch that report exhausted memory."""

_REQUESTED_SIZE = re.compile(r"allocate (\d[\d.]*) ?(bytes|[KMGTP]i?B)")
"""Matches the size of the rejected allocation in an error message."""

_GIB = 2**30

TRAINING_CAUSE = (
    "The batch's activations, the weights with their gradients and optimizer moments, and the "
    "loaded rows together exceed the available memory."
)
"""Likely cause if a training exhausts the memory."""

PREDICTION_CAUSE = (
    "The batch's activations, the weights, the outputs and the loaded rows together exceed the "
    "available memory."
)
"""Likely cause if predictions exhaust the memory. Predictions need no gradients."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception reports exhausted memory of the machine or of an accelerator."""
    if isinstance(error, OutOfMemory | MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(
        phrase in str(error) for phrase in _ERROR_PHRASES
    )


@contextmanager
def explain_out_of_memory(
    work: str, fix: Callable[[], str], *, cause: str = TRAINING_CAUSE
) -> Iterator[None]:
    """Convert an out-of-memory error in the block to ``OutOfMemory`` with advice.

    Args:
        work: What the block computes, with its number of rows; used in the message.
        fix: Function that returns the first change to try; called only if memory is exhausted.
        cause: Sentence that says what uses the memory.

    Raises:
        OutOfMemory: An allocator rejected a request. Other exceptions pass unchanged.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise out_of_memory_error(error, work, fix=fix(), cause=cause) from error


def out_of_memory_error(
    error: BaseException, work: str, *, fix: str = "", cause: str = TRAINING_CAUSE
) -> OutOfMemory:
    """Return the error for exhausted memory: size of the request, free memory and advice.

    Args:
        error: Exception raised by the allocator.
        work: What was computed, with the number of rows if it is known.
        fix: First change to try; if empty, the advice for a training with unknown settings is used.
        cause: Sentence that says what uses the memory.
    """
    return OutOfMemory(
        f"Out of memory in {work}: {describe_error(error).rstrip('.')} "
        f"(raised {locate_error(error)}). {_describe_sizes(str(error))}",
        cause=cause,
        fix=fix or memory_advice(MEMORY_SETTINGS),
    )


MEMORY_SETTINGS = (
    "a smaller training.micro_batch_rows",
    "training.precision: bf16",
    "training.recompute_activations: true",
)
"""Changes of settings that reduce the memory, in the order in which to try them."""


def memory_advice(changes: Sequence[str]) -> str:
    """Return the advice for exhausted memory, beginning with changes of settings.

    Args:
        changes: Changes of settings that are still possible; may be empty.
    """
    settings_to_try = f"Try in this order: {'; '.join(changes)}. " if changes else ""
    return (
        f"{settings_to_try}micro_batch_rows accumulates gradients and gives the same gradient as "
        "the full batch; a network with batch normalization needs a smaller training.batch_rows "
        "instead. 'sluice doctor batch-size PIPELINE' measures the largest batch that fits. "
        "Otherwise reduce the width or depth of the network, or use a machine with more memory."
    )


def prediction_memory_advice() -> str:
    """Return the advice for predictions (without gradients) that run out of memory."""
    return (
        "Predictions are always computed in fp32 and with this number of rows, whatever the "
        "training settings are. Use a smaller network, return smaller outputs from forward(), or "
        "use a device with more memory, such as the CPU (training.device: cpu)."
    )


def _describe_sizes(message: str) -> str:
    """Return how much memory was requested, as far as the message contains it, and is free."""
    match = _REQUESTED_SIZE.search(message)
    requested_text = ""
    if match:
        number, unit = match.groups()
        amount = f"{float(number) / _GIB:.2f} GiB" if unit == "bytes" else f"{number} {unit}"
        requested_text = f"One allocation requested {amount}; "
    return f"{requested_text}{_describe_free_memory(message)}."


def _describe_free_memory(message: str) -> str:
    """Return the free memory of the device on which the allocation failed."""
    if "CUDA" in message and torch.cuda.is_available():
        free_bytes, total_bytes = torch.cuda.mem_get_info()
        return f"{free_bytes / _GIB:.2f} of {total_bytes / _GIB:.2f} GiB of GPU memory were free"
    return f"{available_bytes() / _GIB:.2f} GiB of main memory were free"
