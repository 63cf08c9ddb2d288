"""Estimate of the mean gain of one arm over another, with its variance over seeds and rows.

Shape legend: S = seeds, N = test rows.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from sluice.evaluation.losses import LossTable
from sluice.evaluation.variance import (
    VarianceComponent,
    add_components,
    rows_component,
    scale_component,
    seeds_component,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmLosses:
    """Losses of one arm, with NaN in place of infinity.

    Infinity is replaced because differences of infinite losses are inconsistent: infinity minus
    infinity is NaN, but infinity minus one is infinity.
    """

    loss_SN: NDArray[np.float64]
    is_deterministic: bool
    """Whether the arm is a rule without random seeds."""

    @classmethod
    def of(cls, table: LossTable) -> "ArmLosses":
        """Return the losses of a table."""
        # The memory order is fixed, because the order of summation can change the last bit of a
        # sum.
        loss_SN = np.ascontiguousarray(table.loss_SN)
        loss_or_nan_SN = np.where(np.isfinite(loss_SN), loss_SN, np.nan)
        return cls(loss_SN=loss_or_nan_SN, is_deterministic=table.is_deterministic)

    def select_rows(self, mask_N: NDArray[np.bool_]) -> "ArmLosses":
        """Return the losses of the rows of a mask (N,)."""
        return ArmLosses(loss_SN=self.loss_SN[:, mask_N], is_deterministic=self.is_deterministic)

    def seeds_component(self) -> VarianceComponent:
        """Return the variance component of the arm's mean loss due to its seeds."""
        return seeds_component(self.loss_SN.mean(axis=1), is_deterministic=self.is_deterministic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Mean gain with its independent variance components.

    Gains and standard errors have the unit of the compared losses or metric. Variances have the
    square of this unit.
    """

    gain: float
    candidate_component: VarianceComponent
    """Component due to the seeds of the candidate."""

    reference_component: VarianceComponent
    """Component due to the seeds of the reference."""

    row_component: VarianceComponent
    """Component due to the test rows, or to the folds if metrics are compared."""

    @property
    def total_component(self) -> VarianceComponent:
        """Sum of the three components: the variance of the gain over seeds and rows."""
        return add_components(
            (self.candidate_component, self.reference_component, self.row_component)
        )

    @property
    def standard_error(self) -> float:
        """Standard error of the gain; NaN if a component is unknown."""
        return math.sqrt(self.total_component.variance)

    @property
    def seed_se(self) -> float:
        """Standard error of the gain due to the seeds of both arms."""
        return math.sqrt(self.candidate_component.variance + self.reference_component.variance)

    def quantile(self, alpha: float) -> float:
        """Return the distance between the gain and a one-sided bound at alpha [standard errors]."""
        return float(stdtrit(self.total_component.degrees_of_freedom, 1 - alpha))

    def bounds(self, alpha: float) -> tuple[float, float]:
        """Return the one-sided lower and upper bounds, each at ``alpha``.

        Both are NaN if the variance is 0 or unknown.
        """
        distance = self.quantile(alpha) * self.standard_error
        return self.gain - distance, self.gain + distance

    def p_value(self, required_gain: float) -> float:
        """Return the one-sided p-value. Null hypothesis: the gain is at most ``required_gain``."""
        total_component = self.total_component
        if not total_component.variance > 0:
            return math.nan
        t_statistic = (self.gain - required_gain) / math.sqrt(total_component.variance)
        return float(stdtr(total_component.degrees_of_freedom, -t_statistic))


def estimate_gain(
    candidate: ArmLosses, reference: ArmLosses, fold_N: NDArray[np.int64], *, block_length: int
) -> Estimate:
    """Return the mean gain over all rows and its variance.

    The row component is computed inside each fold and weighted by the fold's share of the rows.
    Therefore no block spans two folds, and differences between the mean gains of folds do not
    contribute. The row component is computed from seed-averaged gains, and the seed components from
    row-averaged losses. Noise that differs for each seed and row contributes to all components. The
    variance is therefore slightly too large, that is, conservative.

    Args:
        candidate: Losses (S, N).
        reference: Losses on the same rows; S may differ.
        fold_N: Fold of each row (N,); within a fold the rows are in time order.
        block_length: Length of a block of dependent rows [rows].
    """
    gain_N = mean_gain(candidate, reference)
    fold_masks = [fold_N == fold for fold in np.unique(fold_N)]
    return Estimate(
        gain=float(gain_N.mean()),
        candidate_component=candidate.seeds_component(),
        reference_component=reference.seeds_component(),
        row_component=add_components(
            scale_component(rows_component(gain_N[mask_N], block_length), float(mask_N.mean()))
            for mask_N in fold_masks
        ),
    )


def mean_gain(candidate: ArmLosses, reference: ArmLosses) -> NDArray[np.float64]:
    """Return the seed-averaged gain of each row (N,): loss of reference minus loss of candidate."""
    gain_N: NDArray[np.float64] = reference.loss_SN.mean(axis=0) - candidate.loss_SN.mean(axis=0)
    return gain_N
