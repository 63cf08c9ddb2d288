"""POC-9: are predictions alive? Neither one constant nor out of all proportion (PRED-1, PRED-2).

Shape legend: N = examples, C = classes, P = values of one prediction.
"""

import math
from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

from sluice.base.settings import Record
from sluice.config.poc_settings import PocSettings, PredictionSettings
from sluice.findings.finding import Finding, Number

_DECIMALS = 6


class PredictionSpread(Record):
    """Standard deviation of predictions over that of the targets, over all outputs."""

    ratio: float
    problem: str = Field(description="'collapse', 'explosion', 'not finite', or empty.")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparable:
    """Predictions and targets as numbers of one kind, (N, P) both."""

    output_NP: Tensor
    y_NP: Tensor


def check_predictions(output: Tensor, y: Tensor, settings: PocSettings) -> Finding:
    """Judge predictions on held-out examples by their spread, variety and tie to the target.

    Predictions of the targets' shape are measured in the targets' deviation. Class scores (N, C)
    become probabilities first, and are compared with 0 and 1; they explode when the scores
    themselves vary by more than ``explosion_ratio`` nats. Anything else has no scale: then only
    exact constants are a collapse.

    - Not finite, a spread ratio below ``collapse_ratio`` or above ``explosion_ratio``: fails.
    - Fewer than ``min_distinct`` distinct predictions at 6 decimals: warns. The decimals count in
      units of the target's deviation where there is one, so that a small unit is no fault.
    - Correlation with the target (mean over outputs): reported. A negative one is no error; one
      that is not defined counts as 0 and warns.

    Args:
        output: Predictions (N, ...) of a trained model on examples it was not fitted to.
        y: Their targets.
        settings: Thresholds.
    """
    limits = settings.predictions
    if len(output) < 2:
        return Finding(
            outcome="insufficient",
            summary=f"At least 2 predictions are required, got {len(output)}.",
            kind="too few rows",
        )
    num_bad = int((~torch.isfinite(output)).sum())
    if num_bad:
        return Finding(
            outcome="fail",
            summary=f"{num_bad} of {output.numel()} predicted values are not finite, first in "
            f"example {int((~torch.isfinite(output)).nonzero()[0, 0])} of {len(output)}.",
            numbers={"num_not_finite": num_bad},
            kind="non-finite output",
        )
    pair = _comparable(output, y)
    if pair is not None and not _varies(pair.y_NP):
        return _constant_targets(output)
    spread = prediction_spread(output, y, limits)
    num_distinct = _distinct(output, y)
    numbers: dict[str, Number] = {"num_examples": len(output), "num_distinct": num_distinct}
    if pair is None:
        numbers["deviation"] = spread.ratio
        seen = f"{len(output)} predictions vary by {spread.ratio:.4g} (mean deviation)"
    else:
        numbers["spread_ratio"] = spread.ratio
        seen = f"{len(output)} predictions vary by {spread.ratio:.4g} times the target's deviation"
    if spread.problem == "explosion":
        return Finding(
            outcome="fail",
            summary=f"{seen}; at most {limits.explosion_ratio:g} is allowed.",
            numbers=numbers,
            kind="explosion",
        )
    if spread.problem:
        return Finding(
            outcome="fail",
            summary=f"{seen}; at least {limits.collapse_ratio:g} is required.",
            numbers=numbers,
            kind="collapse",
        )
    return _judge_variety(pair, num_distinct, seen, numbers, limits)


def prediction_spread(output: Tensor, y: Tensor, settings: PredictionSettings) -> PredictionSpread:
    """Judge how much predictions vary, relative to the targets.

    Class scores (N, C) against classes (N,) are compared as probabilities with 0 and 1. Targets
    that give no scale (one class only, or another shape) leave the predictions' own deviation as
    ratio; then only constant predictions are a collapse.

    Args:
        output: Predictions (N, ...) of one split.
        y: Targets of the same examples.
        settings: Thresholds.
    """
    if not bool(torch.isfinite(output).all()):
        return PredictionSpread(ratio=math.nan, problem="not finite")
    spread = float(output.double().std(dim=0).mean())
    pair = _comparable(output, y)
    if pair is None or (_are_classes(output, y) and not _varies(pair.y_NP)):
        return PredictionSpread(ratio=spread, problem="" if spread > 0 else "collapse")
    if _are_classes(output, y) and spread > settings.explosion_ratio:
        return PredictionSpread(ratio=spread, problem="explosion")
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


def _comparable(output: Tensor, y: Tensor) -> _Comparable | None:
    """Return both as numbers of one kind, or None when the targets give no scale."""
    if _are_classes(output, y):
        return _Comparable(
            output_NP=output.double().softmax(dim=1),
            y_NP=torch.nn.functional.one_hot(y.long(), output.shape[1]).double(),
        )
    if y.shape != output.shape or not y.is_floating_point():
        return None
    return _Comparable(
        output_NP=output.double().reshape(len(output), -1), y_NP=y.double().reshape(len(y), -1)
    )


def _varies(values_NP: Tensor) -> bool:
    return bool((values_NP != values_NP[:1]).any())


def _distinct(output: Tensor, y: Tensor) -> int:
    values_NP = output.double().reshape(len(output), -1)
    if y.shape == output.shape and y.is_floating_point():
        y_NP = y.double().reshape(len(y), -1)
        scale_P = y_NP.std(dim=0)
        values_NP = (values_NP - y_NP.mean(dim=0)) / torch.where(scale_P > 0, scale_P, 1.0)
    return len(torch.unique(values_NP.round(decimals=_DECIMALS), dim=0))


def _correlation(pair: _Comparable) -> float:
    """Return the mean over outputs of Pearson's correlation, over those where it is defined."""
    output_NP = pair.output_NP - pair.output_NP.mean(dim=0)
    y_NP = pair.y_NP - pair.y_NP.mean(dim=0)
    norm_P = output_NP.norm(dim=0) * y_NP.norm(dim=0)
    defined = norm_P > 0
    if not bool(defined.any()):
        return math.nan
    return float(((output_NP * y_NP).sum(dim=0)[defined] / norm_P[defined]).mean())


def _constant_targets(output: Tensor) -> Finding:
    alive = _varies(output.reshape(len(output), -1))
    return Finding(
        outcome="warn" if alive else "fail",
        summary=f"All {len(output)} held-out targets are equal, so there is no scale to measure "
        f"predictions by; they {'do vary' if alive else 'are all equal, too'}.",
        numbers={"num_examples": len(output), "correlation": 0.0},
        kind="collapse",
        cause="The validation rows hold one class or one value only.",
        fix="Choose folds whose validation rows show the whole range of the target.",
    )


def _judge_variety(
    pair: _Comparable | None,
    num_distinct: int,
    seen: str,
    numbers: dict[str, Number],
    limits: PredictionSettings,
) -> Finding:
    correlation = math.nan if pair is None else _correlation(pair)
    undefined = pair is not None and not math.isfinite(correlation)
    if pair is not None:
        numbers["correlation"] = 0.0 if undefined else correlation
        seen = f"{seen}; their correlation with it is {numbers['correlation']:.3g}"
    if num_distinct < min(limits.min_distinct, int(numbers["num_examples"])):
        return Finding(
            outcome="warn",
            summary=f"{seen}. Only {num_distinct} of them are distinct; "
            f"{limits.min_distinct} are usual.",
            numbers=numbers,
            kind="few distinct predictions",
        )
    if undefined:
        return Finding(
            outcome="warn",
            summary=f"{seen}, counted as 0, because it is not defined.",
            numbers=numbers,
            kind="few distinct predictions",
            cause="No output varies together with a target that varies.",
            fix="Look at predictions and targets of the held-out rows.",
        )
    return Finding(outcome="pass", summary=f"{seen}; {num_distinct} distinct.", numbers=numbers)
