"""How far losses fall and rise in brief trainings, in shares of what there is to learn.

The distance from the first loss down to the best constant output, plus that from there to a
predictor that knows the target, is what there is to learn. So it matters neither what is added to
a loss nor what it is multiplied by.

Shape legend: S = seeds, E = epochs.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sluice.config.poc_settings import PocSettings
from sluice.workloads.constant_baseline import Yardstick

_LONGER = 10.0
"""A real training with more than this many times the steps may fall by less at the start."""

_SMALLEST_FALL = 1e-4
"""However long the real training is. A rate of 1e-9 reached at most 3e-6 here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FallBound:
    """How far the loss fell, as a share of what matters: mean over seeds and lower bound."""

    mean: float
    lower: float


def fall_bound(relative_fall_S: NDArray[np.float64], *, confidence: float) -> FallBound:
    """Bound the mean relative fall of the loss over seeds from below, by Student's t.

    Args:
        relative_fall_S: Fall of every seed, at least 2, as a share of what matters.
        confidence: One-sided coverage of the bound.
    """
    # scipy.special, not scipy.stats: the same quantile without a second of import.
    from scipy.special import stdtrit

    num_seeds = len(relative_fall_S)
    mean = float(relative_fall_S.mean())
    error = float(relative_fall_S.std(ddof=1)) / math.sqrt(num_seeds)
    return FallBound(mean=mean, lower=mean - float(stdtrit(num_seeds - 1, confidence)) * error)


def look_confidence(settings: PocSettings) -> float:
    """Return the confidence of each look at the bound.

    Where more seeds are trained if the first ones leave it open, the bound is looked at twice:
    after the first seeds and after all. Each look then spends half of the error, so that both
    together pass a fall that is too small no more often than ``fall_confidence`` allows. A look
    after every seed would have to spend a sixth at each, which three seeds seldom reach.
    """
    looks = 2 if settings.mini_max_seeds > settings.mini_seeds else 1
    return 1.0 - (1.0 - settings.fall_confidence) / looks


def required_fall(step_share: float, settings: PocSettings) -> float:
    """Return the share that the loss must fall by.

    Args:
        step_share: Optimizer steps of the brief training over those of the real one.
        settings: The fall that a training as long as the real one needs.
    """
    shorter = settings.min_relative_fall * min(1.0, _LONGER * step_share)
    return max(shorter, min(settings.min_relative_fall, _SMALLEST_FALL))


def what_matters(first_S: NDArray[np.float64], yardstick: Yardstick) -> NDArray[np.float64]:
    """Return how much there is to learn from each seed's first loss, in the loss's unit."""
    if yardstick.problem:
        return np.abs(first_S)
    return np.maximum(first_S - yardstick.trivial, 0.0) + yardstick.unit


def rises(loss_SE: NDArray[np.float64], yardstick: Yardstick) -> NDArray[np.float64]:
    """Return how far each loss is above both the first one and the best constant [units]."""
    first_S1 = loss_SE[:, :1]
    if yardstick.problem:
        return (loss_SE - first_S1) / np.abs(first_S1)
    return (loss_SE - np.maximum(first_S1, yardstick.trivial)) / yardstick.unit
