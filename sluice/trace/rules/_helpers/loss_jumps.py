"""The step at which the loss permanently exceeds everything before it."""

import math
import statistics
from dataclasses import dataclass

_MAX_LOSSES_BEFORE, _MIN_LOSSES = 64, 16
"""Number of losses before the jump that are considered; number required before and after it."""


@dataclass(frozen=True, slots=True)
class LossJump:
    """A loss that permanently exceeds all losses before it."""

    step: int
    before: float
    """Median of the losses before the jump."""
    after: float
    """Median of the losses from the jump on."""


def find_loss_jump(losses: tuple[tuple[int, float], ...]) -> LossJump | None:
    """Return the first loss that permanently exceeds all losses before it; None without a jump.

    Args:
        losses: Step and loss, in the order of steps; a non-finite loss counts as infinite.
    """
    values = [v if math.isfinite(v) else math.inf for _, v in losses]
    for i in range(_MIN_LOSSES, len(values) - _MIN_LOSSES):
        before = values[max(i - _MAX_LOSSES_BEFORE, 0) : i]
        highest = max(before)
        if values[i] <= highest:
            continue
        later = values[i:]
        parts = later[:_MIN_LOSSES], later, later[-_MIN_LOSSES:]
        if all(statistics.median(part) > highest for part in parts):
            return LossJump(losses[i][0], statistics.median(before), statistics.median(later))
    return None
