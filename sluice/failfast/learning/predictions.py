"""Check that the spread of predictions is similar to that of the targets: no collapse or explosion.

Shape legend: N = examples, C = classes, P = values of one prediction.
"""

import math
from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

from sluice.base.settings import Record
from sluice.config.poc_settings import PocSettings, PredictionSettings
from sluice.findings.check_outcome import CheckOutcome
from sluice.findings.finding import EvidenceValue

_DECIMALS = 6
"""Number of decimals to which predictions are rounded before distinct predictions are counted."""

_WIDE_RATIO = 3.0
"""Spread ratio above which the summary says that the predictions vary more than the targets,
although the check does not fail for this reason. No accurate model has such a wide spread."""


class PredictionSpread(Record):
    """Spread of predictions relative to that of the targets, and its problem."""

    ratio: float = Field(
        description="Mean standard deviation of the outputs (for class scores: of the "
        "probabilities), divided by that of the targets. Not divided if the targets define no "
        "scale. For class scores that explode, their mean standard deviation [nats]. NaN if an "
        "output is not finite, or if all float targets are equal."
    )
    problem: str = Field(
        description="Problem of the predictions: 'collapse', 'explosion' or 'not finite'; empty "
        "without a problem."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScaledPair:
    """Predictions and targets on the same scale, both (N, P)."""

    output_NP: Tensor
    y_NP: Tensor


def check_predictions(
    output: Tensor, y: Tensor, settings: PocSettings, *, num_distinct_inputs: int | None = None
) -> CheckOutcome:
    """Check the spread, distinctness and target correlation of held-out predictions.

    Predictions of the targets' shape are measured in standard deviations of the targets. The
    softmax of class scores (N, C) is compared with the one-hot targets; they explode if the scores
    vary by more than ``explosion_ratio`` nats. Other outputs cannot be scaled, so only constant
    predictions count as a collapse.

    - Non-finite values, and a spread ratio below ``collapse_ratio`` or above ``explosion_ratio``,
      fail.
    - If all targets are equal, constant predictions fail and other predictions warn.
    - Fewer than ``min_distinct`` distinct predictions warn, unless there are as few distinct
      inputs. Predictions are rounded to 6 decimals, if possible in standard deviations of the
      target, so that the unit of the target is irrelevant.
    - The correlation with the target (mean over outputs) is reported. A negative correlation is
      not an error. An undefined correlation counts as 0 and warns.

    Args:
        output: Predictions (N, ...) of a trained model on held-out examples.
        y: Targets of these examples.
        settings: Thresholds.
        num_distinct_inputs: Number of distinct inputs of these examples; None if all are distinct.
    """
    limits = settings.predictions
    if len(output) < 2:
        return CheckOutcome(
            outcome="insufficient",
            summary=f"At least 2 predictions are required, got {len(output):,}.",
            fault="too few rows",
        )
    num_non_finite = int((~torch.isfinite(output)).sum())
    if num_non_finite:
        return CheckOutcome(
            outcome="fail",
            summary=f"{num_non_finite:,} of {output.numel():,} predicted values are not finite, "
            f"first in example {int((~torch.isfinite(output)).nonzero()[0, 0])} of "
            f"{len(output):,}.",
            numbers={"num_not_finite": num_non_finite},
            fault="non-finite output",
        )
    pair = _to_common_scale(output, y)
    if pair is not None and not _varies(pair.y_NP):
        return _constant_targets_finding(output)
    spread = prediction_spread(output, y, limits)
    num_distinct = _count_distinct(output, y)
    numbers: dict[str, EvidenceValue] = {"num_examples": len(output), "num_distinct": num_distinct}
    if pair is None:
        numbers["deviation"] = spread.ratio
        observation = (
            f"{len(output):,} predictions vary by {spread.ratio:.4g} (mean standard deviation)"
        )
    else:
        numbers["spread_ratio"] = spread.ratio
        observation = (
            f"{len(output):,} predictions vary by {spread.ratio:.4g} times the target's standard "
            "deviation"
        )
        if not spread.problem and spread.ratio > _WIDE_RATIO:
            observation += (
                f", more than the targets (at most {limits.explosion_ratio:g} is allowed)"
            )
    if spread.problem == "explosion":
        if _are_classes(output, y) and spread.ratio == _mean_deviation(output):
            observation = f"{len(output):,} class scores vary by {spread.ratio:.4g} nats"
        return CheckOutcome(
            outcome="fail",
            summary=f"{observation}; at most {limits.explosion_ratio:g} is allowed.",
            numbers=numbers,
            fault="explosion",
        )
    if spread.problem:
        requirement = (
            "they are all equal"
            if pair is None
            else f"at least {limits.collapse_ratio:g} is required"
        )
        return CheckOutcome(
            outcome="fail",
            summary=f"{observation}; {requirement}.",
            numbers=numbers,
            fault="collapse",
        )
    num_inputs = len(output) if num_distinct_inputs is None else num_distinct_inputs
    num_expected = min(limits.min_distinct, num_inputs)
    return _judge_distinctness(pair, num_distinct, num_expected, observation, numbers)


def prediction_spread(output: Tensor, y: Tensor, settings: PredictionSettings) -> PredictionSpread:
    """Measure how much predictions vary relative to the targets.

    For classes (N,), the softmax of class scores (N, C) is compared with the one-hot targets. If
    the targets define no scale (a single class, or another shape), the ratio is the standard
    deviation of the predictions, and only constant predictions count as a collapse.

    Args:
        output: Predictions (N, ...) of one split.
        y: Targets of the same examples.
        settings: Thresholds.
    """
    if not bool(torch.isfinite(output).all()):
        return PredictionSpread(ratio=math.nan, problem="not finite")
    deviation = _mean_deviation(output)
    pair = _to_common_scale(output, y)
    if pair is None or (_are_classes(output, y) and not _varies(pair.y_NP)):
        return PredictionSpread(ratio=deviation, problem="" if deviation > 0 else "collapse")
    if _are_classes(output, y) and deviation > settings.explosion_ratio:
        return PredictionSpread(ratio=deviation, problem="explosion")
    scale = float(pair.y_NP.std(dim=0).mean())
    ratio = float(pair.output_NP.std(dim=0).mean()) / scale if scale > 0 else math.nan
    if ratio > settings.explosion_ratio:
        return PredictionSpread(ratio=ratio, problem="explosion")
    return PredictionSpread(
        ratio=ratio, problem="" if ratio >= settings.collapse_ratio else "collapse"
    )


def _are_classes(output: Tensor, y: Tensor) -> bool:
    if y.is_floating_point() or y.ndim != 1 or output.ndim != 2 or output.shape[1] < 2:
        return False
    return int(y.min()) >= 0 and int(y.max()) < output.shape[1]


def _to_common_scale(output: Tensor, y: Tensor) -> _ScaledPair | None:
    """Return outputs and targets on one scale, or None if the targets define no scale."""
    if _are_classes(output, y):
        return _ScaledPair(
            output_NP=output.double().softmax(dim=1),
            y_NP=torch.nn.functional.one_hot(y.long(), output.shape[1]).double(),
        )
    if y.shape != output.shape or not y.is_floating_point():
        return None
    return _ScaledPair(
        output_NP=output.double().reshape(len(output), -1), y_NP=y.double().reshape(len(y), -1)
    )


def _mean_deviation(values: Tensor) -> float:
    return float(values.double().std(dim=0).mean())


def _varies(values_NP: Tensor) -> bool:
    return bool((values_NP != values_NP[:1]).any())


def _count_distinct(output: Tensor, y: Tensor) -> int:
    values_NP = output.double().reshape(len(output), -1)
    if y.shape == output.shape and y.is_floating_point():
        y_NP = y.double().reshape(len(y), -1)
        scale_P = y_NP.std(dim=0)
        values_NP = (values_NP - y_NP.mean(dim=0)) / torch.where(scale_P > 0, scale_P, 1.0)
    return len(torch.unique(values_NP.round(decimals=_DECIMALS), dim=0))


def _correlation(pair: _ScaledPair) -> float:
    """Return Pearson's correlation, averaged over the outputs for which it is defined."""
    output_NP = pair.output_NP - pair.output_NP.mean(dim=0)
    y_NP = pair.y_NP - pair.y_NP.mean(dim=0)
    norm_P = output_NP.norm(dim=0) * y_NP.norm(dim=0)
    is_defined = norm_P > 0
    if not bool(is_defined.any()):
        return math.nan
    return float(((output_NP * y_NP).sum(dim=0)[is_defined] / norm_P[is_defined]).mean())


def _constant_targets_finding(output: Tensor) -> CheckOutcome:
    varies = _varies(output.reshape(len(output), -1))
    return CheckOutcome(
        outcome="warn" if varies else "fail",
        summary=f"All {len(output):,} held-out targets are equal and define no scale for the "
        f"predictions, which {'vary' if varies else 'are all equal, too'}.",
        numbers={"num_examples": len(output), "correlation": 0.0},
        fault="collapse",
        cause="The validation rows contain only one class or value.",
        fix="Choose folds whose validation rows cover the whole range of the target.",
    )


def _judge_distinctness(
    pair: _ScaledPair | None,
    num_distinct: int,
    num_expected: int,
    observation: str,
    numbers: dict[str, EvidenceValue],
) -> CheckOutcome:
    correlation = math.nan if pair is None else _correlation(pair)
    is_undefined = pair is not None and not math.isfinite(correlation)
    if pair is not None:
        numbers["correlation"] = 0.0 if is_undefined else correlation
        correlation_text = "undefined" if is_undefined else f"{correlation:.3g}"
        observation = f"{observation}; their correlation with the target is {correlation_text}"
    if num_distinct < num_expected:
        return CheckOutcome(
            outcome="warn",
            summary=f"{observation}. Only {num_distinct:,} of them are distinct; "
            f"at least {num_expected} are expected.",
            numbers=numbers,
            fault="few distinct predictions",
        )
    if is_undefined:
        return CheckOutcome(
            outcome="warn",
            summary=f"{observation}.",
            numbers=numbers,
            fault="few distinct predictions",
            cause="Each output is constant, or the target of the output is constant.",
            fix="Inspect the predictions and targets of the held-out rows.",
        )
    return CheckOutcome(
        outcome="pass",
        summary=f"{observation}; {num_distinct:,} are distinct.",
        numbers=numbers,
    )
