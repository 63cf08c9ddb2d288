"""Recognises out-of-memory errors and turns them into errors that say what to change."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from sluice.base.error_location import place_of, told
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
def naming_memory(work: str, fix: Callable[[], str]) -> Iterator[None]:
    """Report exhausted memory inside the block with the work that needed it.

    Args:
        work: What the block computes, with its number of rows.
        fix: Returns what to change first; called only when memory is exhausted.

    Raises:
        OutOfMemory: An allocator refused a request. Other exceptions pass unchanged.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise out_of_memory(error, work, fix=fix()) from error


def out_of_memory(error: BaseException, work: str, *, fix: str = "") -> OutOfMemory:
    """Return the error that names the request, the free memory and what to change first.

    Args:
        error: Exception of the allocator.
        work: What was computed, with its number of rows where known.
        fix: What to change first; that of a training with unknown settings when empty.
    """
    return OutOfMemory(
        f"Out of memory in {work}: {told(error).rstrip('.')} (raised {place_of(error)}). "
        f"{_amounts(str(error))}",
        cause="The batch's activations, the weights with their gradients and optimizer moments, "
        "and the loaded rows together need more memory than there is.",
        fix=fix or memory_advice(MEMORY_SETTINGS),
    )


MEMORY_SETTINGS = (
    "a smaller training.micro_batch_rows",
    "training.precision: bf16",
    "training.recompute_activations: true",
)
"""Changes of settings that reduce memory, in the order in which to try them."""


def memory_advice(steps: Sequence[str]) -> str:
    """Return what to do about exhausted memory, with the changes of settings to try first.

    Args:
        steps: Changes that the settings in effect still allow; may be empty.
    """
    tried = f"Try in this order: {'; '.join(steps)}. " if steps else ""
    return (
        f"{tried}micro_batch_rows keeps the gradient of the whole batch; a network with batch "
        "normalisation needs a smaller training.batch_rows instead. 'sluice doctor batch-size "
        f"PIPELINE' measures the largest batch that fits. Otherwise lower the width "
        "or depth of the network, or use a machine with more memory."
    )


def scoring_fix() -> str:
    """Return what to change when predictions without gradients need too much memory."""
    return (
        "Predictions are always computed in fp32 and with this number of rows, so no training "
        "setting changes this. Use a smaller network, return smaller outputs from forward(), or "
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
