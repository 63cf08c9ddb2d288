"""Simulated losses of two recipes with a known true gain.

The losses of candidate and reference differ by three random effects:

- a time effect on each row, which all seeds share. It is autocorrelated and a sum over overlapping
  horizons. Its shocks may have heavy tails or clustered volatility.
- an effect of each seed of each arm;
- noise of every seed on every row.

Shape legend: S = seeds, N = rows, K = shocks of the time effect: one per burn-in step and per row.
"""

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.special import ndtri

from sluice.base.settings import Record
from sluice.evaluation.losses import LossTable

Tails = Literal["normal", "t3", "clustered"]

_TIME_EFFECT_SD, _NOISE_SD = 0.3, 0.2
"""Standard deviations of the time effect on a row (for a horizon of 1), and of the noise [loss
units]."""

_MEAN_LOSS = 5.0
"""Mean loss of both arms without a gain; affects only the equivalence margin."""

_NUM_BURN_IN = 200
"""Number of shocks before the first row. They make the time effect stationary."""

_ARCH, _GARCH = 0.1, 0.85
"""Coefficients of the GARCH(1, 1) process of clustered shocks."""


class GateScenario(Record):
    """One scenario of the grid: a candidate with several seeds, and a reference."""

    rho: float = Field(0.5, ge=0, lt=1, description="Autocorrelation of the AR(1) time effect.")
    tails: Tails = Field(
        "normal",
        description="Distribution of the shocks of the time effect, with variance 1: normal, "
        "Student's t with 3 degrees of freedom, or GARCH(1, 1).",
    )
    horizon_rows: int = Field(
        1, ge=1, description="Number of rows whose time effects are summed [rows]."
    )
    num_seeds: int = Field(
        8,
        ge=2,
        description="Number of seeds of the candidate, and of the reference if it has seeds.",
    )
    seed_share: float = Field(
        0.5,
        ge=0,
        lt=1,
        description="Share of seed effects in the true variance of the mean gain; the noise is not "
        "counted.",
    )
    num_rows: int = Field(1000, ge=30)
    num_folds: int = Field(4, ge=1)
    has_deterministic_reference: bool = Field(
        False, description="Whether the reference is a simple rule without seeds."
    )

    @property
    def row_variance(self) -> float:
        """True variance of the mean gain that the time effect causes [loss units squared].

        Exact, because the mean is a weighted sum of uncorrelated shocks of variance 1.
        """
        response_K = self._filter_shocks(np.eye(1, self.num_rows + _NUM_BURN_IN)[0])
        # K + 1 values, the first of which is 0.
        cumulative_response = np.concatenate(([0.0], np.cumsum(response_K)))
        # The shock at position k affects all positions from k on. Burn-in positions are no rows.
        position_K = np.arange(self.num_rows + _NUM_BURN_IN)
        end_K = self.num_rows + _NUM_BURN_IN - position_K
        start_K = np.maximum(_NUM_BURN_IN - position_K, 0)
        response_sum_K = cumulative_response[end_K] - cumulative_response[start_K]
        return float((response_sum_K**2).sum()) / self.num_rows**2

    @property
    def seed_sd(self) -> float:
        """Standard deviation of one seed's effect [loss units]."""
        num_seeded_arms = 1 if self.has_deterministic_reference else 2
        odds = self.seed_share / (1 - self.seed_share)
        return math.sqrt(self.row_variance * odds * self.num_seeds / num_seeded_arms)

    @property
    def true_se(self) -> float:
        """True standard error of the mean gain [loss units]."""
        num_seeded_arms = 1 if self.has_deterministic_reference else 2
        noise_variance = num_seeded_arms * _NOISE_SD**2 / (self.num_seeds * self.num_rows)
        return math.sqrt(self.row_variance / (1 - self.seed_share) + noise_variance)

    def oracle_effect(self, *, alpha: float, power: float) -> float:
        """Return the gain at which a test with known standard error has the given power."""
        return float(ndtri(1 - alpha) + ndtri(power)) * self.true_se

    def draw(self, rng: np.random.Generator, *, gain: float) -> tuple[LossTable, LossTable]:
        """Return the losses of candidate and reference with a true mean gain of ``gain``."""
        difficulty_N = self.draw_difficulty(rng)
        candidate = self.draw_candidate(rng, difficulty_N + self.draw_time_effect(rng) - gain)
        return candidate, self.draw_reference(rng, difficulty_N)

    def draw_difficulty(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return the mean loss of all recipes on each row (N,) [loss units]."""
        return rng.exponential(size=self.num_rows) + (_MEAN_LOSS - 1)

    def draw_time_effect(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return the difference between two recipes on each row (N,) [loss units]."""
        return self._filter_shocks(_draw_shocks(rng, self.num_rows + _NUM_BURN_IN, self.tails))[
            _NUM_BURN_IN:
        ]

    def draw_candidate(self, rng: np.random.Generator, mean_N: NDArray[np.float64]) -> LossTable:
        """Return the losses (S, N) of a candidate whose expected loss on each row is ``mean_N``."""
        loss_SN = mean_N + self._draw_seed_effects(rng)
        return self._loss_table(loss_SN, "candidate", seeds=tuple(range(self.num_seeds)))

    def draw_reference(self, rng: np.random.Generator, mean_N: NDArray[np.float64]) -> LossTable:
        """Return the losses of the reference, whose expected loss on each row is ``mean_N``.

        Their shape is (S, N), or (1, N) if the reference has no seeds.
        """
        if self.has_deterministic_reference:
            return self._loss_table(mean_N[None], "reference", seeds=())
        loss_SN = mean_N + self._draw_seed_effects(rng)
        return self._loss_table(loss_SN, "reference", seeds=tuple(range(self.num_seeds)))

    def _draw_seed_effects(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return the effect of each seed, with its noise on each row (S, N) [loss units]."""
        effect_S1 = rng.normal(size=(self.num_seeds, 1)) * self.seed_sd
        return effect_S1 + rng.normal(size=(self.num_seeds, self.num_rows)) * _NOISE_SD

    def _filter_shocks(self, shock_K: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the time effect (K,): an AR(1) process, summed over the horizon and scaled."""
        # Imported here, because it imports all of scipy.stats.
        from scipy.signal import lfilter

        ar_K = lfilter([math.sqrt(1 - self.rho**2)], [1.0, -self.rho], shock_K)
        window = np.full(self.horizon_rows, 1 / math.sqrt(self.horizon_rows))
        time_effect_K: NDArray[np.float64] = _TIME_EFFECT_SD * lfilter(window, [1.0], ar_K)
        return time_effect_K

    def _loss_table(
        self, loss_SN: NDArray[np.float64], subject: str, *, seeds: tuple[int, ...]
    ) -> LossTable:
        return LossTable(
            subject=subject,
            window="simulated",
            seeds=seeds,
            fold_N=np.arange(self.num_rows) * self.num_folds // self.num_rows,
            label_N=np.arange(self.num_rows).astype(np.str_),
            loss_SN=loss_SN,
        )


def _draw_shocks(rng: np.random.Generator, num_shocks: int, tails: Tails) -> NDArray[np.float64]:
    """Return uncorrelated shocks (K,) of variance 1."""
    if tails == "t3":
        return rng.standard_t(3, size=num_shocks) / math.sqrt(3.0)
    shock_K = rng.normal(size=num_shocks)
    if tails == "clustered":
        variance = 1.0
        # In GARCH(1, 1), the variance of a value depends on the previous value.
        for i, z in enumerate(shock_K.tolist()):
            shock_K[i] = math.sqrt(variance) * z
            variance = (1 - _ARCH - _GARCH) + (_ARCH * z * z + _GARCH) * variance
    return shock_K
