"""Table of the metrics of one model by seed and fold, for the guards of metrics.

Shape legend: S = seeds, F = folds.
"""

import math
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from sluice.base.pluralize import pluralize
from sluice.base.settings import Record
from sluice.evaluation.variance import (
    NO_VARIANCE,
    UNKNOWN_VARIANCE,
    VarianceComponent,
    seeds_component,
)
from sluice.verdicts.metric_change import MIN_FOLDS


class MetricTable(Record):
    """Named metrics on one window; missing values are NaN."""

    subject: str = Field(description="Digest of the model or rule.")
    window: str = Field(description="Digest of the scored data and rows.")
    seeds: tuple[int, ...] = Field(description="Seeds; empty for a rule without seeds.")
    fold_rows: tuple[int, ...] = Field(
        min_length=1, description="Number of test rows of each fold."
    )
    values: dict[str, tuple[tuple[float, ...], ...]] = Field(
        description="Values by metric, seed (one row without seeds) and fold."
    )

    @model_validator(mode="after")
    def _require_shape(self) -> Self:
        num_seeds, num_folds = max(1, len(self.seeds)), len(self.fold_rows)
        for name, value_SF in self.values.items():
            fold_counts = {len(value_F) for value_F in value_SF}
            if len(value_SF) != num_seeds or fold_counts != {num_folds}:
                raise ValueError(
                    f"metric {name!r} must have shape (seeds, folds) = {(num_seeds, num_folds)}, "
                    f"got {pluralize(len(value_SF), 'seed')} with "
                    f"{' or '.join(map(str, sorted(fold_counts))) or 'no'} folds"
                )
        return self

    def values_of(self, name: str) -> NDArray[np.float64] | None:
        """Return a metric's values (S, F), with infinity as NaN; None for an unknown metric."""
        if name not in self.values:
            return None
        value_SF = np.asarray(self.values[name], np.float64)
        return np.where(np.isfinite(value_SF), value_SF, np.nan)

    @property
    def share_F(self) -> NDArray[np.float64]:
        """Share of the test rows that belong to each fold (F,)."""
        num_rows_F = np.asarray(self.fold_rows, np.float64)
        share_F: NDArray[np.float64] = num_rows_F / num_rows_F.sum()
        return share_F

    @property
    def by_seed(self) -> tuple[dict[str, float], ...]:
        """Metrics of each seed, averaged over folds; each fold is weighted by its number of rows.

        For a metric that is a mean over rows, this is the mean over all rows.
        """
        mean_S_by_name = {
            name: np.asarray(value_SF, np.float64) @ self.share_F
            for name, value_SF in self.values.items()
        }
        return tuple(
            {name: float(mean_S[index]) for name, mean_S in mean_S_by_name.items()}
            for index in range(max(1, len(self.seeds)))
        )

    @property
    def means(self) -> dict[str, float]:
        """Mean over the seeds of each metric in ``by_seed``; NaN if it is NaN for any seed."""
        return {name: float(np.mean([m[name] for m in self.by_seed])) for name in self.values}

    def seeds_component(self, name: str) -> VarianceComponent:
        """Return the variance component of a metric due to the seeds."""
        value_SF = self.values_of(name)
        if value_SF is None:
            return UNKNOWN_VARIANCE
        return seeds_component(value_SF @ self.share_F, is_deterministic=not self.seeds)


def folds_component(
    difference_F: NDArray[np.float64], share_F: NDArray[np.float64]
) -> VarianceComponent:
    """Return the variance component of the weighted mean of one number per fold.

    Each fold is treated as one very long block. This costs degrees of freedom, but the result is
    also valid for metrics that are not means over rows, such as a Sharpe ratio or an F1 score. With
    equal weights, the result is the variance of an unweighted mean.

    >>> folds_component(np.array([1.0, 3.0, 2.0]), np.full(3, 1 / 3)).variance
    0.333...

    Returns:
        The component; ``UNKNOWN_VARIANCE`` for fewer than three folds. With two folds, a guard with
        a nominal error rate of 2.2 % would pass 4 % of the candidates that violate its margin.
    """
    num_folds = difference_F.size
    if num_folds < MIN_FOLDS:
        return UNKNOWN_VARIANCE
    deviation_F = difference_F - float(difference_F @ share_F)
    variance = num_folds / (num_folds - 1) * math.fsum((share_F * deviation_F) ** 2)
    return (
        VarianceComponent(variance=variance, degrees_of_freedom=num_folds - 1.0)
        if variance != 0
        else NO_VARIANCE
    )
