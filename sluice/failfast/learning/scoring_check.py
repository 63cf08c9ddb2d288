"""POC-9: can predictions be scored and compared, before there are hours of them?"""

import math
from collections.abc import Mapping

import pandas as pd
import torch
from torch import Tensor

from sluice.data.folds import Fold
from sluice.evaluation.simple_rules import SimpleRuleSettings, best_rule
from sluice.findings.finding import Finding
from sluice.workloads.workload import Examples, Workload

_NEAR_SHARE = 0.5
"""Of the way from the best simple rule to the default one that still counts as near."""


def check_scoring(
    workload: Workload,
    output: Tensor,
    held_out: Examples,
    frame: pd.DataFrame,
    fold: Fold,
    *,
    compared: bool,
) -> Finding:
    """Call the workload's metrics and baseline as the evaluation will, after the training (POC-9).

    Of the baseline only shape and finiteness are looked at: it predicts test rows. Sluice's own
    default, which predicts a level, may not fit outputs of another meaning (a mean and a
    deviation, say): that only warns where nothing will be compared with it.

    Args:
        workload: Has metrics and baseline.
        output: Predictions for ``held_out``.
        held_out: Validation examples of the fold.
        frame: Feature frame.
        fold: The fold whose test rows the baseline predicts.
        compared: An evaluation follows, which needs the baseline.

    Raises:
        Exception: Whatever the workload's own code raises.
    """
    metrics = workload.metrics(output, held_out, frame)
    if not isinstance(metrics, Mapping) or not all(_is_number(v) for v in metrics.values()):
        return _wrong(
            "metrics() must return one number for each name, got "
            f"{metrics if isinstance(metrics, Mapping) else type(metrics).__name__!r}."
        )
    headline = workload.headline_metric
    if headline not in metrics:
        return _wrong(
            f"metrics() must hold the headline metric '{headline}', got "
            f"{', '.join(map(str, metrics)) or 'nothing'}."
        )
    rule = workload.baseline(frame, fold)
    required = workload.output_shape(workload.examples(frame, fold.test).y)
    if not isinstance(rule, Tensor) or tuple(rule.shape) != tuple(required):
        got = tuple(rule.shape) if isinstance(rule, Tensor) else type(rule).__name__
        seen = f"baseline() must return {tuple(required)} for the test rows, got {got}."
        if type(workload).baseline is Workload.baseline:
            return Finding(
                outcome="fail" if compared else "warn",
                summary=f"{seen} It is Sluice's default.",
                cause="The default predicts the mean of the targets, and outputs mean more here.",
                fix="Write baseline() in the workload before an evaluation: what a candidate has "
                "to beat.",
            )
        return _wrong(seen)
    num_bad = int((~torch.isfinite(rule)).sum())
    if num_bad:
        return _wrong(f"{num_bad} of {rule.numel()} predictions of baseline() are not finite.")
    near = _beside_simple_rules(workload, output, held_out, frame, fold)
    undefined = [name for name, value in metrics.items() if not math.isfinite(float(value))]
    note = f"; not defined on these rows: {', '.join(undefined)}" if undefined else ""
    return Finding(
        outcome="pass",
        summary=f"{len(metrics)} metrics of {len(held_out)} held-out rows compute{note}; the "
        f"baseline predicts {len(rule)} test rows.{near}",
        numbers={"num_metrics": len(metrics), "num_baseline_rows": len(rule)},
    )


def _beside_simple_rules(
    workload: Workload, output: Tensor, held_out: Examples, frame: pd.DataFrame, fold: Fold
) -> str:
    """Say when a brief training is not near the simple rule that the gate will compare with."""
    if type(workload).baseline is not Workload.baseline:
        return ""
    rule = best_rule(workload, frame, fold, SimpleRuleSettings())
    best, default = rule.losses[rule.name], next(iter(rule.losses.values()))
    ours = float(workload.losses(output, held_out.y).double().mean())
    if ours <= best + _NEAR_SHARE * (default - best):
        return ""
    return (
        f" The brief training has a loss of {ours:.4g} on the held-out rows and is not near the "
        f"simple rule '{rule.name}' ({best:.4g}), which the gate compares with."
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) or (
        hasattr(value, "ndim") and value.ndim == 0 and hasattr(value, "__float__")
    )


def _wrong(summary: str) -> Finding:
    return Finding(
        outcome="fail",
        summary=summary,
        cause="The method was written for other outputs or targets; nothing calls it before the "
        "evaluation, which comes after the training.",
        fix="Correct the named method of the workload.",
    )
