"""Decreases and increases of the loss in mini trainings, relative to the learnable loss.

The learnable loss is the first loss, or the loss of the best constant output if this loss is
higher, minus the loss of a predictor that knows the target. Ratios to the learnable loss do not
change if a constant is added to the loss or if the loss is multiplied by a factor.

Shape legend: S = seeds, E = epochs.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sluice.config.poc_settings import PocSettings
from sluice.workloads.constant_baseline import ConstantBaseline

_MAX_STEP_RATIO = 10.0
"""Maximum ratio of the real training's steps to the mini training's steps for which the full
``min_loss_decrease`` is required. At higher ratios, the requirement is reduced in proportion."""

_MIN_DECREASE = 1e-4
"""Lower limit of the reduced requirement [share of the learnable loss]. With a learning rate of
1e-9 the measured decrease was at most 3e-6."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossDecreaseBound:
    """Loss decrease as a share of the learnable loss: mean over seeds, and its lower bound."""

    mean: float
    lower: float


def bound_loss_decrease(decrease_S: NDArray[np.float64], *, confidence: float) -> LossDecreaseBound:
    """Return a lower confidence bound of the mean relative loss decrease, by Student's t.

    Args:
        decrease_S: Loss decrease of at least 2 seeds, as a share of the learnable loss.
        confidence: One-sided coverage of the bound.
    """
    # scipy.stats would give the same quantile, but its import takes a second.
    from scipy.special import stdtrit

    num_seeds = len(decrease_S)
    mean = float(decrease_S.mean())
    standard_error = float(decrease_S.std(ddof=1)) / math.sqrt(num_seeds)
    return LossDecreaseBound(
        mean=mean, lower=mean - float(stdtrit(num_seeds - 1, confidence)) * standard_error
    )


def interim_confidence(settings: PocSettings) -> float:
    """Return the confidence level of each interim analysis of the bound.

    More seeds are trained if the first ``mini_seeds`` are inconclusive. The bound is then tested
    twice: after the first seeds and after all seeds. Each test gets half of the error rate, so both
    tests together accept a decrease that is too small no more often than
    ``loss_decrease_confidence`` allows. With a test after every seed, each of the six tests of the
    default settings would get a sixth of the error rate, and three seeds would seldom pass.
    """
    num_analyses = 2 if settings.mini_max_seeds > settings.mini_seeds else 1
    return 1.0 - (1.0 - settings.loss_decrease_confidence) / num_analyses


def required_loss_decrease(step_share: float, settings: PocSettings) -> float:
    """Return the required loss decrease, as a share of the learnable loss.

    Args:
        step_share: Optimizer steps of the mini training divided by those of the real training.
        settings: Contains ``min_loss_decrease``, which is reduced if the real training has more
            than ten times the steps of the mini training.
    """
    scaled_decrease = settings.min_loss_decrease * min(1.0, _MAX_STEP_RATIO * step_share)
    return max(scaled_decrease, min(settings.min_loss_decrease, _MIN_DECREASE))


def learnable_loss(first_S: NDArray[np.float64], baseline: ConstantBaseline) -> NDArray[np.float64]:
    """Return the learnable loss of each seed; without a baseline, the absolute first loss."""
    if baseline.problem:
        return np.abs(first_S)
    return np.maximum(first_S - baseline.loss, 0.0) + baseline.unit


def loss_increases(loss_SE: NDArray[np.float64], baseline: ConstantBaseline) -> NDArray[np.float64]:
    """Return how far each loss is above the first loss and the constant baseline (S, 1 + E).

    The larger of the two is subtracted, and the increase is divided by ``baseline.unit``. Without a
    baseline, the result is the increase over the first loss, relative to the first loss.
    """
    first_S1 = loss_SE[:, :1]
    if baseline.problem:
        return (loss_SE - first_S1) / np.abs(first_S1)
    return (loss_SE - np.maximum(first_S1, baseline.loss)) / baseline.unit
