"""Are predictions alive: neither one constant nor out of all proportion (PRED-1)?"""

import math

import torch
from pydantic import Field
from torch import Tensor

from sluice.failfast.settings import PredictionSettings
from sluice.settings import Record


class PredictionSpread(Record):
    """Standard deviation of predictions over that of the targets, over all outputs."""

    ratio: float
    problem: str = Field(description="'collapse', 'explosion', 'not finite', or empty.")


def prediction_spread(output: Tensor, y: Tensor, settings: PredictionSettings) -> PredictionSpread:
    """Judge how much predictions vary, relative to the targets.

    Targets that are no numbers of the output's shape (classes, say) give no scale; then only
    constant predictions are a collapse.

    Args:
        output: Predictions (N, ...) of one split.
        y: Targets of the same examples.
        settings: Thresholds.
    """
    if not bool(torch.isfinite(output).all()):
        return PredictionSpread(ratio=math.nan, problem="not finite")
    spread = float(output.double().std(dim=0).mean())
    if y.shape != output.shape or not y.is_floating_point():
        return PredictionSpread(ratio=spread, problem="" if spread > 0 else "collapse")
    scale = float(y.double().std(dim=0).mean())
    ratio = spread / scale if scale > 0 else math.nan
    if ratio > settings.explosion_ratio:
        return PredictionSpread(ratio=ratio, problem="explosion")
    return PredictionSpread(
        ratio=ratio, problem="" if ratio >= settings.collapse_ratio else "collapse"
    )
