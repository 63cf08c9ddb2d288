"""The largest batch that fits into memory, by running it (TRACE-17)."""

from collections.abc import Callable, Iterator
from typing import Literal

import torch
from pydantic import Field

from sluice.base.errors import ContractError
from sluice.base.memory import available_bytes
from sluice.base.settings import Record
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings
from sluice.training.step_probe import Attempt, StepProbe
from sluice.workloads.workload import Examples, Workload


class BatchSizeResult(Record):
    """The largest size that was run and fitted."""

    rows: int = Field(description="Examples of a batch.")
    peak_bytes: int = Field(description="Growth of memory at this size [bytes].")
    bound: Literal["memory", "limit_rows"] = Field(description="What a larger batch would break.")
    memory_bytes: int = Field(description="Largest growth allowed [bytes].")
    attempts: tuple[Attempt, ...] = Field(description="In the order they were run.")


Probe = Callable[[int], Attempt]
"""Runs one size."""


def largest_batch(
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

    Sizes are doubled until one does not fit, then the gap is halved. The size that is returned
    was run; none is taken from a formula. On a CPU no size is tried that could need more than
    there is, going by the largest one that fitted: peak memory grows at most in proportion to
    the rows, and a process that takes too much is killed without a word.

    Args:
        workload: Builds the model and has the loss.
        model_settings: Architecture and size.
        train: Train rows; a batch is never larger than these.
        training: The real training's settings; ``batch_rows`` is ignored.
        limit_rows: Largest batch of interest [rows].
        memory_bytes: How much memory may grow by training [bytes].
        gap_share: Stop when the smallest size that does not fit is within this share of the
            largest that does; 0 finds it to the row.
        device: Where to run.
        seed: Base seed of weights and dropout.
        probe: Runs one size; a ``StepProbe`` when absent.

    Raises:
        ContractError: A limit is not positive, the budget is more than there is, or not even one
            row fits.
        Exception: Whatever the model's or the loss's own code raises.

    Cost:
        About 2 log2(limit_rows) attempts of two steps each, fewer with a larger ``gap_share``.
    """
    usable = available_bytes() if device.type == "cpu" else None
    limit = min(limit_rows, len(train))
    _require_sound(limit, memory_bytes, gap_share, usable)
    run = probe or StepProbe(
        workload,
        model_settings,
        train,
        training,
        memory_bytes=memory_bytes,
        device=device,
        seed=seed,
    )
    attempts = tuple(_search(run, limit, gap_share, usable))
    fitting = [attempt for attempt in attempts if attempt.fits]
    if not fitting:
        least = attempts[-1]
        raise ContractError(
            f"At least one row must fit into {memory_bytes:,} bytes, a batch of {least.rows} grew "
            f"memory by {least.peak_bytes:,}. {least.problem}".rstrip(),
            cause="The weights with gradients and moments alone may need more than that.",
            fix="Make the model or seq_len smaller, or give more memory.",
        )
    best = max(fitting, key=lambda attempt: attempt.rows)
    return BatchSizeResult(
        rows=best.rows,
        peak_bytes=best.peak_bytes,
        bound="limit_rows" if best.rows == limit else "memory",
        memory_bytes=memory_bytes,
        attempts=attempts,
    )


def _search(
    probe: Probe, limit: int, gap_share: float, usable_bytes: int | None
) -> Iterator[Attempt]:
    # From two rows, not one: batch norm cannot be trained on one.
    rows, fits, too_many = min(2, limit), 0, limit + 1
    while fits < rows < too_many:
        attempt = probe(rows)
        yield attempt
        if attempt.fits:
            fits = rows
        else:
            too_many = rows
        if fits == 0:
            rows = rows // 2
        elif too_many <= limit:
            gap = too_many - fits
            rows = fits if gap <= max(1, gap_share * fits) else fits + gap // 2
        else:
            rows = min(2 * fits, limit)
        if attempt.fits and usable_bytes is not None and attempt.peak_bytes > 0:
            rows = min(rows, max(fits, fits * usable_bytes // attempt.peak_bytes))


def _require_sound(limit: int, memory_bytes: int, gap_share: float, usable: int | None) -> None:
    if limit < 1 or memory_bytes < 1 or not 0 <= gap_share < 1:
        raise ContractError(
            "limit_rows, the number of train rows and memory_bytes must be positive and gap_share "
            f"at least 0 and below 1, got {limit}, {memory_bytes} and {gap_share:g}.",
            fix="Correct the value that is out of range.",
        )
    if usable is not None and memory_bytes > usable:
        raise ContractError(
            f"memory_bytes must be within the memory that is free, got {memory_bytes:,} of "
            f"{usable:,} bytes.",
            cause="A process that takes more is killed by the system.",
            fix="Lower memory_bytes, or end what uses the memory.",
        )
