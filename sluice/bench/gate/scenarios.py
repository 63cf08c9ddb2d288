"""Simulated losses of two recipes with a known true gain.

Candidate and reference differ by a time effect shared by all seeds (dependent, heavy-tailed or with
clustered volatility, summed over overlapping horizons), by seed effects of each arm, and by noise
of every seed on every row.

Shape legend: S = seeds, N = rows, K = shocks: one per burn-in step and per row.
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

_TIME_SD, _NOISE_SD = 0.3, 0.2
_LEVEL = 5.0
"""Mean loss of both arms; affects only the equivalence margin."""
_BURN_IN = 200
_ARCH, _GARCH = 0.1, 0.85


class GateScenario(Record):
    """One scenario of the grid. Under the null both recipes are equally good."""

    rho: float = Field(0.5, ge=0, lt=1, description="Autocorrelation of the AR(1) time effect.")
    tails: Tails = Field(
        "normal", description="Distribution of the shocks of the time effect; all have variance 1."
    )
    horizon_rows: int = Field(1, ge=1, description="Rows summed into one target [rows].")
    num_seeds: int = Field(8, ge=2, description="Seeds of each arm.")
    seed_share: float = Field(
        0.5,
        ge=0,
        lt=1,
        description="Share of the gain's true variance, without the noise, that comes from seed "
        "effects.",
    )
    num_rows: int = Field(1000, ge=30)
    num_folds: int = Field(4, ge=1)
    deterministic: bool = Field(
        False, description="Whether the reference is deterministic, as a simple rule without seeds."
    )

    @property
    def row_variance(self) -> float:
        """True variance of the mean gain from the time effect [loss units squared].

        Exact, because the mean is a weighted sum of uncorrelated shocks of variance 1.
        """
        response_K = self._filtered(np.eye(1, self.num_rows + _BURN_IN)[0])
        # K + 1 values, the first of which is 0.
        cumulative_response = np.concatenate(([0.0], np.cumsum(response_K)))
        # The shock at position k affects the rows from k on; those of the burn-in are dropped.
        at_K = np.arange(self.num_rows + _BURN_IN)
        last = self.num_rows + _BURN_IN - at_K
        first = np.maximum(_BURN_IN - at_K, 0)
        response_sum_K = cumulative_response[last] - cumulative_response[first]
        return float((response_sum_K**2).sum()) / self.num_rows**2

    @property
    def seed_sd(self) -> float:
        """Standard deviation of one seed's effect [loss units]."""
        arms = 1 if self.deterministic else 2
        odds = self.seed_share / (1 - self.seed_share)
        return math.sqrt(self.row_variance * odds * self.num_seeds / arms)

    @property
    def true_se(self) -> float:
        """True standard error of the mean gain [loss units]."""
        arms = 1 if self.deterministic else 2
        noise = arms * _NOISE_SD**2 / (self.num_seeds * self.num_rows)
        return math.sqrt(self.row_variance / (1 - self.seed_share) + noise)

    def oracle_effect(self, *, alpha: float, power: float) -> float:
        """Return the gain that is detected with ``power`` when the standard error is known."""
        return float(ndtri(1 - alpha) + ndtri(power)) * self.true_se

    def draw(self, rng: np.random.Generator, *, gain: float) -> tuple[LossTable, LossTable]:
        """Return the losses of candidate and reference with a true mean gain of ``gain``."""
        base_N = self.base(rng)
        candidate = self.candidate(rng, base_N + self.time_effect(rng) - gain)
        return candidate, self.reference(rng, base_N)

    def base(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return the difficulty of each row, common to all recipes (N,) [loss units]."""
        return rng.exponential(size=self.num_rows) + (_LEVEL - 1)

    def time_effect(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return the difference between two recipes on each row (N,) [loss units]."""
        return self._filtered(_shocks(rng, self.num_rows + _BURN_IN, self.tails))[_BURN_IN:]

    def candidate(self, rng: np.random.Generator, mean_N: NDArray[np.float64]) -> LossTable:
        """Return the losses (S, N) of a candidate whose expected loss on each row is ``mean_N``."""
        loss_SN = mean_N + self._seeds(rng, self.num_seeds)
        return self._table(loss_SN, "candidate", seeds=tuple(range(self.num_seeds)))

    def reference(self, rng: np.random.Generator, mean_N: NDArray[np.float64]) -> LossTable:
        """Return the losses of the reference, whose expected loss on each row is ``mean_N``.

        Their shape is (S, N), or (1, N) without seeds if the reference is deterministic.
        """
        if self.deterministic:
            return self._table(mean_N[None], "reference", seeds=())
        loss_SN = mean_N + self._seeds(rng, self.num_seeds)
        return self._table(loss_SN, "reference", seeds=tuple(range(self.num_seeds)))

    def _seeds(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        effect_S1 = rng.normal(size=(count, 1)) * self.seed_sd
        return effect_S1 + rng.normal(size=(count, self.num_rows)) * _NOISE_SD

    def _filtered(self, shock_K: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the time effect: AR(1) of unit variance, summed over the horizon, scaled."""
        # Imported here, because it imports all of scipy.stats.
        from scipy.signal import lfilter

        ar_K = lfilter([math.sqrt(1 - self.rho**2)], [1.0, -self.rho], shock_K)
        window = np.full(self.horizon_rows, 1 / math.sqrt(self.horizon_rows))
        time_K: NDArray[np.float64] = _TIME_SD * lfilter(window, [1.0], ar_K)
        return time_K

    def _table(
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


def _shocks(rng: np.random.Generator, count: int, tails: Tails) -> NDArray[np.float64]:
    """Return uncorrelated shocks (K,) of variance 1."""
    if tails == "t3":
        return rng.standard_t(3, size=count) / math.sqrt(3.0)
    shock_K = rng.normal(size=count)
    if tails == "clustered":
        variance = 1.0
        # GARCH(1, 1): each value depends on the previous one.
        for at, z in enumerate(shock_K.tolist()):
            shock_K[at] = math.sqrt(variance) * z
            variance = (1 - _ARCH - _GARCH) + (_ARCH * z * z + _GARCH) * variance
    return shock_K
