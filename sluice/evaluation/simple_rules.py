"""Simple baseline rules that a candidate must beat if the workload defines no baseline.

Rules are fitted on train rows. For each fold, the rule with the lowest validation loss is used, so
test rows do not affect the selection.

Shape legend: N = examples, K = inputs of an example, flattened.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import torch
from pydantic import Field, field_validator
from torch import Tensor

from sluice.base.errors import ContractError
from sluice.base.settings import Settings
from sluice.data.folds import Fold, RowRange
from sluice.data.rows.protocol import RowSource, read_all_as_tensor
from sluice.evaluation.lag_rules import last_class, last_value, seasonal_rule
from sluice.evaluation.linear_rule import linear
from sluice.evaluation.rule_data import BaselineRule, RuleData, RuleNotApplicable
from sluice.findings.user_code import wrap_user_errors
from sluice.workloads.workload import Workload


class BaselineSettings(Settings):
    """Settings of the baseline: limits of the simple rules, or a model that replaces the rules."""

    predictions: str | None = Field(
        None,
        pattern=r"^mlflow:/[^/@]+/[1-9][0-9]*$",
        description="URI of a model, mlflow:/NAME/VERSION, whose imported predictions are the "
        "baseline until the first promotion; import them with 'sluice registry import'. With null, "
        "the baseline is ``Workload.baseline`` if the workload overrides it, else the best simple "
        "rule.",
    )
    season_rows: tuple[int, ...] = Field(
        (5, 7, 12, 24),
        strict=False,
        description="Lengths of a season for which the seasonal naive rule is tried, such as 7 "
        "for days of a week or 24 for hours [rows].",
    )
    max_rows: int = Field(
        20_000,
        ge=10,
        description="Maximum number of train rows, evenly spaced, on which the linear rule is "
        "fitted [rows].",
    )
    max_inputs: int = Field(
        256,
        ge=1,
        description="Maximum number of inputs of an example that the linear rule uses.",
    )

    @field_validator("season_rows")
    @classmethod
    def _require_positive_seasons(cls, season_rows: tuple[int, ...]) -> tuple[int, ...]:
        if any(length < 1 for length in season_rows):
            raise ValueError(f"season_rows must be at least 1 row each, got {list(season_rows)}")
        return season_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldRule:
    """Selected rule of one fold."""

    fold_id: int
    name: str
    losses: Mapping[str, float]
    """Mean validation loss of each applicable rule, by name."""

    output: Tensor
    """Output of the rule for the fold's test examples, with the shape of the model's output."""


def best_rule(
    workload: Workload, frame: pd.DataFrame, fold: Fold, settings: BaselineSettings
) -> FoldRule:
    """Return the simple rule with the lowest validation loss, with its output on the test rows.

    The rules are: the default baseline (mean of the train targets, or class shares); the last
    known target or class; the last known target at the same position of the season; a ridge or
    logistic regression on the inputs.

    Args:
        workload: Workload without its own baseline.
        frame: Feature frame.
        fold: Fold; rules are fitted on train rows and selected on validation rows.
        settings: Season lengths, and limits of the linear rule.

    Raises:
        ContractError: Not even the default baseline applies to these targets.

    Cost:
        Creates the examples of each split, and of the rows before validation and test rows that
        lags require. Memory: ``max_inputs`` floats per row.
    """
    train, val, test = (
        RuleData.of(workload.examples(frame, split), max_inputs=settings.max_inputs)
        for split in (fold.train, fold.val, fold.test)
    )
    rules = _make_rules(val, settings)
    # The default baseline is first, so that the simplest rule is selected if losses are equal.
    validation_fold = fold.model_copy(update={"test": fold.val})
    losses = {
        _default_rule_name(val): _mean_loss(
            workload, _compute_baseline(workload, frame, validation_fold), val
        )
    }
    known_rows = _prepend_past_rows(workload, frame, fold.val, val, settings)
    for name, rule in rules.items():
        with contextlib.suppress(RuleNotApplicable):
            losses[name] = _mean_loss(workload, rule(workload, train, known_rows, val), val)
    finite_losses = {name: loss for name, loss in losses.items() if math.isfinite(loss)}
    best_name = (
        min(finite_losses, key=lambda name: finite_losses[name])
        if finite_losses
        else next(iter(losses))
    )
    if best_name in rules:
        known_rows = _prepend_past_rows(workload, frame, fold.test, test, settings)
        output = rules[best_name](workload, train, known_rows, test)
    else:
        output = _compute_baseline(workload, frame, fold)
    return FoldRule(fold_id=fold.fold_id, name=best_name, losses=losses, output=output)


def _make_rules(rows: RuleData, settings: BaselineSettings) -> dict[str, BaselineRule]:
    """Return the rules that are tried besides the default baseline, by name."""
    linear_rule = partial(linear, max_rows=settings.max_rows)
    if not rows.y.is_floating_point():
        return {"last class": last_class, "logistic": linear_rule}
    seasons = {f"seasonal last value, {n} rows": n for n in settings.season_rows}
    return {
        "last value": last_value,
        "linear": linear_rule,
        **{name: seasonal_rule(season) for name, season in seasons.items()},
    }


def _prepend_past_rows(
    workload: Workload,
    frame: pd.DataFrame,
    split: RowRange,
    rows: RuleData,
    settings: BaselineSettings,
) -> RuleData:
    """Return the rows, preceded by as many earlier rows as the longest lag requires."""
    max_lag = workload.horizon_rows + max(settings.season_rows, default=0)
    start = max(0, split.start - max_lag)
    if start == split.start:
        return rows
    try:
        past_examples = workload.examples(frame, RowRange(start=start, stop=split.start))
    except ContractError:  # the rows are too close to the start of the frame for a window
        return rows
    return RuleData(
        y=torch.cat([past_examples.targets, rows.y]),
        rows=np.concatenate([past_examples.rows, rows.rows]),
        input_NK=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Reference of a candidate while no version is in production."""

    name: str
    """Display name."""

    outputs: Mapping[int, Tensor | RowSource]
    """Output for the test examples of each fold id, with the shape of the model's output."""

    losses: Mapping[int, Mapping[str, float]]
    """Mean validation loss of each simple rule, by fold id; empty for another baseline."""


def choose_baseline(
    workload: Workload,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
    settings: BaselineSettings,
) -> Baseline:
    """Return the workload's own baseline or, without one, the best simple rule of each fold.

    Raises:
        ContractError: See ``Workload.baseline``.
    """
    if type(workload).baseline is not Workload.baseline:
        with wrap_user_errors("baseline() of the workload"):
            outputs = {fold.fold_id: workload.baseline(frame, fold) for fold in folds}
        return Baseline(name="the workload's baseline", outputs=outputs, losses={})
    rules = [best_rule(workload, frame, fold, settings) for fold in folds]
    return Baseline(
        name=describe_rules([rule.name for rule in rules]),
        outputs={rule.fold_id: rule.output for rule in rules},
        losses={rule.fold_id: rule.losses for rule in rules},
    )


def describe_rules(names: Sequence[str]) -> str:
    """Return a description of the rules that the folds use, given the name of each fold's rule.

    >>> describe_rules(["linear", "last value", "last value"])
    'the best simple rule (last value in 2 of 3 folds, linear in 1)'
    """
    (most_common_rule, most_common_count), *others = Counter(names).most_common()
    if not others:
        return f"the best simple rule ({most_common_rule})"
    other_counts = ", ".join(f"{name} in {count}" for name, count in others)
    counts = f"{most_common_rule} in {most_common_count} of {len(names)} folds, {other_counts}"
    return f"the best simple rule ({counts})"


def _compute_baseline(workload: Workload, frame: pd.DataFrame, fold: Fold) -> Tensor:
    return read_all_as_tensor(workload.baseline(frame, fold), what="baseline predictions")


def _default_rule_name(rows: RuleData) -> str:
    return "train mean" if rows.y.is_floating_point() else "class shares"


def _mean_loss(workload: Workload, output: Tensor, rows: RuleData) -> float:
    return float(workload.losses(output, rows.y).double().mean())
