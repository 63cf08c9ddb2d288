"""Finds the first step at which the loss jumps above the losses before it and stays there."""

import math
import statistics
from dataclasses import dataclass

from pydantic import Field

from sluice.base.settings import Settings


class LossJumpSettings(Settings):
    """Thresholds of a jump of the loss."""

    max_losses_before: int = Field(
        64,
        ge=1,
        description="The loss at a jump must exceed each of this number of preceding losses, or "
        "all preceding losses if there are fewer.",
    )
    min_losses: int = Field(
        16,
        ge=1,
        description="A jump requires at least this number of losses before the jump and after it. "
        "Two medians of this number of losses must exceed the losses before the jump: the median "
        "of the first losses from the jump on, and the median of the last losses of the run.",
    )


@dataclass(frozen=True, slots=True)
class LossJump:
    """A jump of the loss to values that stay above the losses before it."""

    step: int
    """First step of the jump. Its loss exceeds up to ``max_losses_before`` losses before it."""
    median_before: float
    """Median of up to ``max_losses_before`` losses directly before the jump."""
    median_after: float
    """Median of the losses from the jump on."""


def find_loss_jump(
    losses: tuple[tuple[int, float], ...], settings: LossJumpSettings
) -> LossJump | None:
    """Return the first jump of the loss; None without a jump.

    At a jump, the loss exceeds each of the ``max_losses_before`` losses before the jump. Three
    medians of the losses from the jump on exceed them, too: the median of all, of the first
    ``min_losses``, and of the last ``min_losses``.

    Args:
        losses: Step and loss, in the order of steps; a non-finite loss counts as infinite.
        settings: Thresholds of a jump.
    """
    values = [v if math.isfinite(v) else math.inf for _, v in losses]
    for i in range(settings.min_losses, len(values) - settings.min_losses):
        losses_before = values[max(i - settings.max_losses_before, 0) : i]
        max_loss_before = max(losses_before)
        if values[i] <= max_loss_before:
            continue
        later_losses = values[i:]
        first_losses = later_losses[: settings.min_losses]
        last_losses = later_losses[-settings.min_losses :]
        samples = (first_losses, later_losses, last_losses)
        if all(statistics.median(sample) > max_loss_before for sample in samples):
            return LossJump(
                losses[i][0], statistics.median(losses_before), statistics.median(later_losses)
            )
    return None
