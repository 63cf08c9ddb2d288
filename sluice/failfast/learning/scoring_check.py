"""Check that predictions can be scored and compared with the baseline, before a long training."""

import math
from collections.abc import Mapping, Sequence

import pandas as pd
import torch
from torch import Tensor

from sluice.base.pluralize import pluralize
from sluice.base.settings import suggest_nearest
from sluice.data.folds import Fold
from sluice.data.rows.protocol import RowSource, gather_targets, gather_tensor, spread_rows
from sluice.evaluation.simple_rules import BaselineSettings, best_rule
from sluice.findings.check_outcome import CheckOutcome
from sluice.workloads.examples import Examples
from sluice.workloads.workload import Workload

_MAX_BASELINE_ROWS = 256
"""Maximum number of test rows for which the baseline is checked if ``keep_outputs`` of the workload
is False."""

_TOLERANCE_GAIN_SHARE = 0.5
"""Maximum excess of the trained loss over the loss of the best simple rule, as a share of the gain
of the best rule over the default rule. A note reports a larger excess."""

_MIN_TOLERANCE_SHARE = 0.05
"""Lower bound of the maximum excess, as a share of the absolute loss of the best simple rule."""


def check_scoring(
    workload: Workload,
    output: Tensor,
    held_out: Examples,
    frame: pd.DataFrame,
    fold: Fold,
    *,
    needs_baseline: bool,
    guarded_metrics: Sequence[str] = (),
) -> CheckOutcome:
    """Call the workload's metrics and baseline in the same way as the evaluation.

    Only shape and finiteness of the baseline are checked, because it predicts test rows. Sluice's
    default baseline predicts the mean target. It may have a wrong shape for outputs with another
    meaning, such as mean and deviation. This only warns if no evaluation follows.

    Args:
        workload: Defines metrics and baseline.
        output: Predictions for ``held_out``.
        held_out: Validation examples of the fold.
        frame: Feature frame.
        fold: The fold whose test rows the baseline predicts.
        needs_baseline: Whether an evaluation follows, which needs the baseline.
        guarded_metrics: Metrics that the promotion gate guards, which the workload must compute.

    Raises:
        Exception: Any exception of the workload's own code.
    """
    metrics = workload.metrics(output, held_out, frame)
    if not isinstance(metrics, Mapping) or not all(_is_number(v) for v in metrics.values()):
        return _scoring_finding(
            "metrics() must return one number for each name, got "
            f"{metrics if isinstance(metrics, Mapping) else type(metrics).__name__!r}."
        )
    headline = workload.headline_metric
    if headline not in metrics:
        return _scoring_finding(
            f"metrics() must contain the headline metric '{headline}', got "
            f"{', '.join(map(str, metrics)) or 'nothing'}."
            f"{suggest_nearest(headline, list(map(str, metrics)))}"
        )
    unknown_metrics = [name for name in guarded_metrics if name not in metrics]
    if unknown_metrics:
        return _unknown_guard_finding(unknown_metrics, list(map(str, metrics)))
    baseline, num_rows, required_shape = _predict_baseline(workload, frame, fold)
    if not isinstance(baseline, Tensor) or tuple(baseline.shape) != tuple(required_shape):
        actual = tuple(baseline.shape) if isinstance(baseline, Tensor) else type(baseline).__name__
        observation = (
            f"baseline() must return the shape {tuple(required_shape)} for the test rows, "
            f"got {actual}."
        )
        if type(workload).baseline is Workload.baseline:
            return CheckOutcome(
                outcome="fail" if needs_baseline else "warn",
                summary=f"{observation} The workload uses Sluice's default baseline.",
                fault="invalid scoring method",
                cause="The default baseline predicts the mean of the targets, but the outputs of "
                "this workload have another meaning.",
                fix="Write baseline() in the workload before an evaluation, in which a candidate "
                "must be better than the baseline.",
            )
        return _scoring_finding(observation)
    num_non_finite = int((~torch.isfinite(baseline)).sum())
    if num_non_finite:
        return _scoring_finding(
            f"{num_non_finite:,} of {baseline.numel():,} predictions of baseline() are not finite."
        )
    rule_note = _compare_with_simple_rule(workload, output, held_out, frame, fold)
    undefined_names = [name for name, value in metrics.items() if not math.isfinite(float(value))]
    note = f" (undefined on these rows: {', '.join(undefined_names)})" if undefined_names else ""
    return CheckOutcome(
        outcome="pass",
        summary=f"{pluralize(len(metrics), 'metric')} computed on {len(held_out):,} held-out rows"
        f"{note}; the baseline predicts {num_rows:,} test rows.{rule_note}",
        numbers={"num_metrics": len(metrics), "num_baseline_rows": num_rows},
    )


def _unknown_guard_finding(
    unknown_metrics: Sequence[str], available_metrics: list[str]
) -> CheckOutcome:
    """Return the failure that a guard names a metric that metrics() does not return."""
    names = ", ".join(f"'{name}'" for name in unknown_metrics)
    return CheckOutcome(
        outcome="fail",
        summary=f"guards: metrics() of the workload does not return {names}."
        f"{suggest_nearest(unknown_metrics[0], available_metrics)} Available: "
        f"{', '.join(available_metrics)}.",
        fault="invalid scoring method",
        cause="A guard on a metric that the workload does not compute has no evidence, so a "
        "candidate would be INCONCLUSIVE after its training.",
        fix="Correct the name under guards.metrics or guards.limits, or return the metric from "
        "metrics() of the workload.",
    )


def _predict_baseline(
    workload: Workload, frame: pd.DataFrame, fold: Fold
) -> tuple[object, int, tuple[int, ...]]:
    """Return predictions of the baseline, the number of predicted rows, and the required shape.

    If ``keep_outputs`` is False, only predictions of evenly spaced rows are returned, but the
    number of rows counts all predictions.
    """
    baseline, test_examples = workload.baseline(frame, fold), workload.examples(frame, fold.test)
    has_rows = isinstance(baseline, Tensor | RowSource)
    if workload.keep_outputs or not has_rows or len(baseline) != len(test_examples):
        num_rows = len(baseline) if has_rows else 0
        return baseline, num_rows, workload.output_shape(test_examples.targets)
    positions = spread_rows(len(test_examples), _MAX_BASELINE_ROWS)
    predictions = gather_tensor(baseline, positions, what="baseline predictions")
    targets = gather_targets(test_examples.y, positions)
    return predictions, len(baseline), workload.output_shape(targets)


def _compare_with_simple_rule(
    workload: Workload, output: Tensor, held_out: Examples, frame: pd.DataFrame, fold: Fold
) -> str:
    """Return a note if the mini training's loss clearly exceeds that of the best simple rule.

    The result is "" for a smaller excess, and for a workload with its own baseline.
    """
    if type(workload).baseline is not Workload.baseline:
        return ""
    rule = best_rule(workload, frame, fold, BaselineSettings())
    best_loss, default_loss = rule.losses[rule.name], next(iter(rule.losses.values()))
    trained_loss = float(workload.losses(output, held_out.targets).double().mean())
    tolerance = max(
        _TOLERANCE_GAIN_SHARE * (default_loss - best_loss), _MIN_TOLERANCE_SHARE * abs(best_loss)
    )
    if trained_loss <= best_loss + tolerance:
        return ""
    return (
        f" The mini training has a loss of {trained_loss:.4g} on the held-out rows. The rule "
        f"'{rule.name}', with which the evaluation compares a candidate, has a clearly lower loss "
        f"of {best_loss:.4g}."
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) or (
        hasattr(value, "ndim") and value.ndim == 0 and hasattr(value, "__float__")
    )


def _scoring_finding(summary: str) -> CheckOutcome:
    return CheckOutcome(
        outcome="fail",
        summary=summary,
        fault="invalid scoring method",
    )
