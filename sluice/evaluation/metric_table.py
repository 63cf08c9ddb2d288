"""Metrics of one subject, a number for each seed and fold: what a metric's guard is proven by.

Shape legend: S = seeds, F = folds.
"""

import math
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from sluice.base.settings import Record
from sluice.evaluation.variance import NOTHING, UNKNOWN, Part, seeds_part
from sluice.verdicts.metric_change import FEWEST_FOLDS


class MetricTable(Record):
    """Named metrics on one window. A metric that is absent somewhere is NaN there."""

    subject: str = Field(description="Digest of the model or rule.")
    window: str = Field(description="Digest of the data and rows that were scored.")
    seeds: tuple[int, ...] = Field(description="Empty for a rule without seeds.")
    fold_rows: tuple[int, ...] = Field(min_length=1, description="Test rows of each fold.")
    values: dict[str, tuple[tuple[float, ...], ...]] = Field(
        description="By name: for each seed (one line without seeds) a number for each fold."
    )

    @model_validator(mode="after")
    def _rectangular(self) -> Self:
        want = (max(1, len(self.seeds)), len(self.fold_rows))
        for name, value_SF in self.values.items():
            got = (len(value_SF), {len(value_F) for value_F in value_SF})
            if got != (want[0], {want[1]}):
                raise ValueError(f"metric {name!r} must be (seeds, folds) = {want}, got {got}")
        return self

    def numbers(self, name: str) -> NDArray[np.float64] | None:
        """Return one metric (S, F), infinite ones as NaN; None when it was not computed."""
        if name not in self.values:
            return None
        value_SF = np.asarray(self.values[name], np.float64)
        return np.where(np.isfinite(value_SF), value_SF, np.nan)

    @property
    def share_F(self) -> NDArray[np.float64]:
        """Each fold's share of the rows (F,)."""
        rows_F = np.asarray(self.fold_rows, np.float64)
        share_F: NDArray[np.float64] = rows_F / rows_F.sum()
        return share_F

    @property
    def by_seed(self) -> tuple[dict[str, float], ...]:
        """Each seed's metrics, averaged over folds by their number of test rows.

        So a metric that is a mean over rows is the mean over all rows.
        """
        mean_S = {name: np.asarray(v, np.float64) @ self.share_F for name, v in self.values.items()}
        return tuple(
            {name: float(value_S[at]) for name, value_S in mean_S.items()}
            for at in range(max(1, len(self.seeds)))
        )

    @property
    def means(self) -> dict[str, float]:
        """Mean over seeds of ``by_seed``; NaN as soon as one seed is."""
        return {name: float(np.mean([m[name] for m in self.by_seed])) for name in self.values}

    def seeds_part(self, name: str) -> Part:
        """Return the part of a metric's variance that comes from the seeds."""
        value_SF = self.numbers(name)
        if value_SF is None:
            return UNKNOWN
        return seeds_part(value_SF @ self.share_F, is_deterministic=not self.seeds)


def folds_part(difference_F: NDArray[np.float64], share_F: NDArray[np.float64]) -> Part:
    """Return the variance of a weighted mean of one number per fold.

    Folds are blocks that are far too long, which only costs degrees of freedom; it holds for a
    metric that is no mean over rows (a Sharpe ratio, an F1). With equal folds it is the variance
    of a plain mean.

    >>> folds_part(np.array([1.0, 3.0, 2.0]), np.full(3, 1 / 3)).variance
    0.333...

    Returns:
        ``UNKNOWN`` below three folds: with two, one number says how sure the other is, and a
        guard at 2.2 % passes 4 % of broken candidates.
    """
    count = difference_F.size
    if count < FEWEST_FOLDS:
        return UNKNOWN
    deviation_F = difference_F - float(difference_F @ share_F)
    variance = count / (count - 1) * math.fsum((share_F * deviation_F) ** 2)
    return Part(variance=variance, degrees_of_freedom=count - 1.0) if variance != 0 else NOTHING
