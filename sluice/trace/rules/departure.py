"""The step at which a loss leaves for good what training had reached."""

import math
import statistics
from dataclasses import dataclass

_BEFORE, _LEAST = 64, 16
"""Losses that are left: so many count, so many are needed, and as many after them."""


@dataclass(frozen=True, slots=True)
class Departure:
    """A loss that left all before it."""

    step: int
    before: float
    """The middle one of the losses that it left."""
    after: float
    """The middle one of all from there on."""


def departure(losses: tuple[tuple[int, float], ...]) -> Departure | None:
    """Return the first loss that left all before it for good; None where none did.

    Args:
        losses: Step and loss, by step; one that is not finite is above all others.
    """
    values = [v if math.isfinite(v) else math.inf for _, v in losses]
    for i in range(_LEAST, len(values) - _LEAST):
        before = values[max(i - _BEFORE, 0) : i]
        highest = max(before)
        if values[i] <= highest:
            continue
        later = values[i:]
        parts = later[:_LEAST], later, later[-_LEAST:]
        if all(statistics.median(part) > highest for part in parts):
            return Departure(losses[i][0], statistics.median(before), statistics.median(later))
    return None
