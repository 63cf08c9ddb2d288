"""Simulated loss tables with known gain, variance and serial correlation."""

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from sluice.evaluation.losses import LossTable

LABELS = np.array([f"{i:06d}" for i in range(5000)])


def make_losses(
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


def make_seed_effects(num_seeds: int, size: float) -> NDArray[np.float64]:
    """Return effects (S, 1) with mean 0 and standard deviation (ddof 1) ``size``."""
    steps = np.arange(num_seeds, dtype=float)
    return (size * (steps - steps.mean()) / steps.std(ddof=1))[:, None]


def center(values_N: NDArray[np.float64]) -> NDArray[np.float64]:
    return values_N - values_N.mean()


def ar1(rng: np.random.Generator, rho: float, num_rows: int) -> NDArray[np.float64]:
    """Return a stationary AR(1) series (N,) with unit variance."""
    shocks = rng.normal(size=num_rows + 100) * np.sqrt(1 - rho**2)
    return lfilter([1], [1, -rho], shocks)[100:]


def simulate_arms(
    rng: np.random.Generator,
    *,
    rho: float,
    gain: float = 0.0,
    num_seeds: int = 5,
    num_rows: int = 1000,
    seed_share: float = 0.5,
    deterministic: bool = False,
) -> tuple[LossTable, LossTable]:
    """Return candidate and reference with a true gain, a time effect and seed effects.

    All seeds share the time effect, an AR(1) series. ``seed_share`` is the share of the seed
    effects in the true variance of the gain, without the noise.
    """
    time_N = 0.3 * ar1(rng, rho, num_rows)
    row_variance = 0.09 * (1 + rho) / (1 - rho) / num_rows
    num_random_arms = 1 if deterministic else 2
    seed_sd = np.sqrt(row_variance * seed_share / (1 - seed_share) * num_seeds / num_random_arms)
    base_N = rng.exponential(size=num_rows) + 5

    def draw_seed_losses() -> NDArray[np.float64]:
        effect_S1 = rng.normal(size=(num_seeds, 1)) * seed_sd
        return effect_S1 + rng.normal(size=(num_seeds, num_rows)) * 0.2

    reference = base_N[None] if deterministic else base_N + draw_seed_losses()
    return (
        make_losses(base_N + time_N - gain + draw_seed_losses(), "candidate", num_folds=4),
        make_losses(reference, "reference", num_folds=4, deterministic=deterministic),
    )
