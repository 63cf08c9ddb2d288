"""Default epoch selector: the epoch with the lowest validation loss."""

import math
from collections.abc import Mapping

from sluice.base.errors import ContractError
from sluice.base.pluralize import pluralize


def best_epoch(scores: Mapping[int, float]) -> int:
    """Return the epoch with the lowest finite score; the earliest epoch if several are equal.

    NaN and infinite scores are ignored, so an epoch without a valid measurement is never selected.
    The order of the mapping does not matter.

    Args:
        scores: Validation loss by epoch; lower is better.

    Raises:
        ContractError: There are no scores, or no score is finite.

    >>> best_epoch({10: 0.9, 20: 0.4, 30: 0.4, 40: float("nan")})
    20
    """
    finite_scores = [(score, epoch) for epoch, score in scores.items() if math.isfinite(score)]
    if not finite_scores:
        got = f"{pluralize(len(scores), 'score')}, none finite" if scores else "no scores at all"
        raise ContractError(
            f"Selecting an epoch requires at least one finite validation loss, got {got}.",
            cause="Training diverged from the start, or the validation targets are not finite."
            if scores
            else "No epoch was validated.",
            fix="Lower the learning rate and inspect the losses of the first epoch."
            if scores
            else "Validate at least one epoch, and pass its loss.",
        )
    return min(finite_scores)[1]
