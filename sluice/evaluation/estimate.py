"""The mean gain of one arm over another, with its variance over seeds and over rows.

Shape legend: S = seeds, N = test rows.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from sluice.evaluation.losses import LossTable
from sluice.evaluation.variance import Part, pooled, rows_part, scaled, seeds_part


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """Losses of one arm where every number that is not finite is NaN.

    One kind of bad number, because infinity less infinity and infinity less one differ.
    """

    loss_SN: NDArray[np.float64]
    is_deterministic: bool

    @classmethod
    def of(cls, table: LossTable) -> "Arm":
        """Take the losses of a table."""
        # One memory order, or sums of the same numbers differ in the last bit after a reordering.
        loss_SN = np.ascontiguousarray(table.loss_SN)
        clean_SN = np.where(np.isfinite(loss_SN), loss_SN, np.nan)
        return cls(loss_SN=clean_SN, is_deterministic=table.is_deterministic)

    def rows(self, rows_N: NDArray[np.bool_]) -> "Arm":
        """Return the arm on some rows only."""
        return Arm(loss_SN=self.loss_SN[:, rows_N], is_deterministic=self.is_deterministic)

    def seeds_part(self) -> Part:
        """Return the variance of the arm's mean loss that comes from its seeds."""
        return seeds_part(self.loss_SN.mean(axis=1), is_deterministic=self.is_deterministic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean gain [loss units] and its independent parts of variance [loss units squared]."""

    gain: float
    candidate_seeds: Part
    reference_seeds: Part
    rows: Part

    @property
    def whole(self) -> Part:
        """The variance of the gain, seeds and rows together."""
        return pooled((self.candidate_seeds, self.reference_seeds, self.rows))

    @property
    def standard_error(self) -> float:
        """Of the gain [loss units]; NaN when a part is unknown."""
        return math.sqrt(self.whole.variance)

    @property
    def seed_se(self) -> float:
        """The standard error's part from the seeds of both arms [loss units]."""
        return math.sqrt(self.candidate_seeds.variance + self.reference_seeds.variance)

    def quantile(self, alpha: float) -> float:
        """Return how many standard errors a one-sided bound lies from the gain."""
        return float(stdtrit(self.whole.degrees_of_freedom, 1 - alpha))

    def bounds(self, alpha: float) -> tuple[float, float]:
        """Return the one-sided lower and the one-sided upper bound, each at ``alpha``."""
        reach = self.quantile(alpha) * self.standard_error
        return self.gain - reach, self.gain + reach

    def p_value(self, required: float) -> float:
        """Return the one-sided p-value of a true gain no larger than ``required``."""
        whole = self.whole
        if not whole.variance > 0:
            return math.nan
        score = (self.gain - required) / math.sqrt(whole.variance)
        return float(stdtr(whole.degrees_of_freedom, -score))


def estimate_gain(
    candidate: Arm, reference: Arm, fold_N: NDArray[np.int64], *, block_length: int
) -> Estimate:
    """Return the mean gain over all rows and its variance.

    The row part is taken inside each fold and added with the fold's share of the rows, so that
    neither a shift between folds nor a block across two of them enters. It is computed on
    seed-averaged gains; the seed part on row-averaged losses. Noise of a single seed on a single
    row is in both, which errs on the safe side by at most its share in N.

    Args:
        candidate: Losses (S, N).
        reference: Losses on the same rows; S may differ.
        fold_N: Fold of each row (N,); within a fold the rows are in time order.
        block_length: Rows of a bootstrap block [rows].
    """
    gain_N = mean_gain(candidate, reference)
    in_fold = [fold_N == fold for fold in np.unique(fold_N)]
    return Estimate(
        gain=float(gain_N.mean()),
        candidate_seeds=candidate.seeds_part(),
        reference_seeds=reference.seeds_part(),
        rows=pooled(
            scaled(rows_part(gain_N[rows_N], block_length), float(rows_N.mean()))
            for rows_N in in_fold
        ),
    )


def mean_gain(candidate: Arm, reference: Arm) -> NDArray[np.float64]:
    """Return the seed-averaged gain of each row (N,): reference's loss less candidate's."""
    gain_N: NDArray[np.float64] = reference.loss_SN.mean(axis=0) - candidate.loss_SN.mean(axis=0)
    return gain_N
