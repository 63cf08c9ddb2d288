"""Finds the largest batch size that fits into memory, by running training steps."""

from collections.abc import Callable, Iterator
from typing import Literal

import torch
from pydantic import Field

from sluice.base.errors import ContractError
from sluice.base.memory import available_bytes
from sluice.base.settings import Record
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings
from sluice.training.step_probe import BatchSizeAttempt, StepProbe
from sluice.workloads.examples import Examples
from sluice.workloads.workload import Workload


class BatchSizeResult(Record):
    """Result of the search for the largest batch size that fits into memory."""

    rows: int = Field(description="Number of examples of the largest batch that fits.")
    peak_bytes: int = Field(description="Peak growth of memory at this batch size [bytes].")
    bound: Literal["memory", "limit_rows"] = Field(
        description="Limit that a larger batch would exceed: 'memory', or 'limit_rows' for the "
        "maximum batch size of the search or the number of train rows."
    )
    memory_bytes: int = Field(description="Limit of the growth of memory during a step [bytes].")
    attempts: tuple[BatchSizeAttempt, ...] = Field(
        description="Attempts in the order in which they were run."
    )


Probe = Callable[[int], BatchSizeAttempt]
"""Function that runs training steps with one batch size."""


def find_largest_batch(
    workload: Workload,
    model_settings: ModelSettings,
    train: Examples,
    training: TrainSettings,
    *,
    limit_rows: int,
    memory_bytes: int,
    gap_share: float,
    device: torch.device,
    seed: int,
    probe: Probe | None = None,
) -> BatchSizeResult:
    """Return the largest batch whose training steps fit into ``memory_bytes``.

    The batch size is doubled until a batch does not fit. Then the interval between the largest size
    that fits and the smallest size that does not fit is bisected. The returned size was tried.

    On a CPU, no further size is tried that could exceed the available memory, because the operating
    system would kill the process. The memory of a size is estimated from the peak memory of the
    largest size that fitted, in proportion to the rows.

    Args:
        workload: Builds the model and provides the loss.
        model_settings: Architecture and size.
        train: Train rows; their number also limits the batch size.
        training: Settings of the real training. Steps use its optimizer, precision, micro-batches,
            clipping and recomputation of activations.
        limit_rows: Maximum batch size of the search [rows].
        memory_bytes: Maximum growth of memory during training [bytes].
        gap_share: Maximum relative gap at the end of the search: smallest size that does not fit,
            divided by the largest size that fits, minus 1. 0 searches to the exact row.
        device: Device that runs the steps.
        seed: Base seed of weights and dropout.
        probe: Runs one batch size; a ``StepProbe`` if None.

    Raises:
        ContractError: A limit is not positive, ``memory_bytes`` exceeds the available memory, or
            not even one row fits.
        Exception: Raised by the code of the model or of the loss.

    Cost:
        About 2 log2(limit_rows) attempts of two steps each, fewer with a larger ``gap_share``.
    """
    usable_bytes = available_bytes() if device.type == "cpu" else None
    max_rows = min(limit_rows, len(train))
    _require_valid(max_rows, memory_bytes, gap_share, usable_bytes)
    probe = probe or StepProbe(
        workload,
        model_settings,
        train,
        training,
        memory_bytes=memory_bytes,
        device=device,
        seed=seed,
    )
    attempts = tuple(_search(probe, max_rows, gap_share, usable_bytes))
    fitting_attempts = [attempt for attempt in attempts if attempt.fits]
    if not fitting_attempts:
        last_attempt = attempts[-1]
        raise ContractError(
            f"At least one row must fit into {memory_bytes:,} bytes, but a batch of "
            f"{last_attempt.rows} row increased memory by {last_attempt.peak_bytes:,} bytes. "
            f"{last_attempt.problem}".rstrip(),
            cause="Weights, gradients and optimizer state alone may exceed this limit.",
            fix="Make the model or seq_len smaller, or raise the memory limit.",
        )
    largest_attempt = max(fitting_attempts, key=lambda attempt: attempt.rows)
    return BatchSizeResult(
        rows=largest_attempt.rows,
        peak_bytes=largest_attempt.peak_bytes,
        bound="limit_rows" if largest_attempt.rows == max_rows else "memory",
        memory_bytes=memory_bytes,
        attempts=attempts,
    )


def _search(
    probe: Probe, max_rows: int, gap_share: float, usable_bytes: int | None
) -> Iterator[BatchSizeAttempt]:
    # Start with two rows, because batch normalisation cannot be trained on one row.
    rows, largest_fitting, smallest_failing = min(2, max_rows), 0, max_rows + 1
    while largest_fitting < rows < smallest_failing:
        attempt = probe(rows)
        yield attempt
        if attempt.fits:
            largest_fitting = rows
        else:
            smallest_failing = rows
        if largest_fitting == 0:
            rows = rows // 2
        elif smallest_failing <= max_rows:
            gap = smallest_failing - largest_fitting
            is_close = gap <= max(1, gap_share * largest_fitting)
            rows = largest_fitting if is_close else largest_fitting + gap // 2
        else:
            rows = min(2 * largest_fitting, max_rows)
        if attempt.fits and usable_bytes is not None and attempt.peak_bytes > 0:
            max_safe_rows = largest_fitting * usable_bytes // attempt.peak_bytes
            rows = min(rows, max(largest_fitting, max_safe_rows))


def _require_valid(
    max_rows: int, memory_bytes: int, gap_share: float, usable_bytes: int | None
) -> None:
    if max_rows < 1 or memory_bytes < 1 or not 0 <= gap_share < 1:
        raise ContractError(
            "The maximum batch size (limit_rows, or the number of train rows) and memory_bytes "
            "must be positive, and gap_share must be at least 0 and below 1; got "
            f"{max_rows}, {memory_bytes} and {gap_share:g}.",
            fix="Correct the value that is out of range.",
        )
    if usable_bytes is not None and memory_bytes > usable_bytes:
        raise ContractError(
            f"memory_bytes must not exceed the free memory, got {memory_bytes:,} of "
            f"{usable_bytes:,} bytes.",
            cause="The system kills a process that exceeds the memory.",
            fix="Lower memory_bytes, or end other processes that use memory.",
        )
