"""Which epoch's weights are kept: the one with the lowest validation loss."""

import math
from collections.abc import Mapping

from sluice.base.errors import ContractError


def best_epoch(scores: Mapping[int, float]) -> int:
    """Return the epoch with the lowest finite score; of equal ones the earliest (POC-4).

    Scores that are NaN or infinite are skipped: an epoch that could not be measured is never the
    best one. The order in which the mapping holds its epochs does not matter.

    Args:
        scores: Validation loss by epoch; lower is better.

    Raises:
        ContractError: There are no scores, or none of them is finite.

    >>> best_epoch({10: 0.9, 20: 0.4, 30: 0.4, 40: float("nan")})
    20
    """
    finite = [(score, epoch) for epoch, score in scores.items() if math.isfinite(score)]
    if not finite:
        seen = f"{len(scores)} scores, none of them finite" if scores else "no scores at all"
        raise ContractError(
            f"Choosing an epoch requires at least one finite validation loss, got {seen}.",
            cause="Training did not reach the end of an epoch, or it diverged from the start."
            if scores
            else "No epoch was validated.",
            fix="Lower the learning rate and look at the first epoch's losses.",
        )
    return min(finite)[1]
