"""Loss tables with a known truth, for the tests of this package."""

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from sluice.evaluation.losses import LossTable

LABELS = np.array([f"{i:06d}" for i in range(5000)])


def table(
    loss_SN: NDArray[np.float64],
    subject: str,
    *,
    num_folds: int = 1,
    deterministic: bool = False,
    window: str = "window",
) -> LossTable:
    num_seeds, num_rows = loss_SN.shape
    return LossTable(
        subject=subject,
        window=window,
        seeds=() if deterministic else tuple(range(num_seeds)),
        fold_N=np.sort(np.arange(num_rows) * num_folds // num_rows),
        label_N=LABELS[:num_rows],
        loss_SN=loss_SN,
    )


def spread(num_seeds: int, size: float) -> NDArray[np.float64]:
    """Seed effects (S, 1) whose mean is 0 and whose standard deviation (ddof 1) is ``size``."""
    steps = np.arange(num_seeds, dtype=float)
    return (size * (steps - steps.mean()) / steps.std(ddof=1))[:, None]


def centred(values_N: NDArray[np.float64]) -> NDArray[np.float64]:
    return values_N - values_N.mean()


def ar1(rng: np.random.Generator, rho: float, num_rows: int) -> NDArray[np.float64]:
    """Stationary AR(1) with unit variance (N,)."""
    shocks = rng.normal(size=num_rows + 100) * np.sqrt(1 - rho**2)
    return lfilter([1], [1, -rho], shocks)[100:]


def two_recipes(
    rng: np.random.Generator,
    *,
    rho: float,
    gain: float = 0.0,
    num_seeds: int = 5,
    num_rows: int = 1000,
    seed_share: float = 0.5,
    deterministic: bool = False,
) -> tuple[LossTable, LossTable]:
    """Candidate and reference with a true gain, a time effect all seeds share, and seed effects.

    ``seed_share`` is the seeds' share of the gain's true variance, without the noise.
    """
    time_N = 0.3 * ar1(rng, rho, num_rows)
    row_variance = 0.09 * (1 + rho) / (1 - rho) / num_rows
    arms = 1 if deterministic else 2
    seed_sd = np.sqrt(row_variance * seed_share / (1 - seed_share) * num_seeds / arms)
    base_N = rng.exponential(size=num_rows) + 5

    def draw() -> NDArray[np.float64]:
        own_S1 = rng.normal(size=(num_seeds, 1)) * seed_sd
        return own_S1 + rng.normal(size=(num_seeds, num_rows)) * 0.2

    reference = base_N[None] if deterministic else base_N + draw()
    return (
        table(base_N + time_N - gain + draw(), "candidate", num_folds=4),
        table(reference, "reference", num_folds=4, deterministic=deterministic),
    )
