"""Simple rules that a candidate must beat where the workload brings no baseline of its own.

A rule is fitted on train rows. Each fold takes the rule with the lowest loss on its validation
rows, so that test rows choose nothing.

Shape legend: N = examples, O = outputs, C = classes, K = inputs of an example, flattened.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from sluice.data.folds import Fold, RowRange
from sluice.failfast.user_code import users_code
from sluice.settings import Settings
from sluice.workloads.workload import Examples, Workload


class SimpleRuleSettings(Settings):
    """Which simple rules there are, and how much they may read."""

    season_rows: tuple[int, ...] = Field(
        (5, 7, 12, 24),
        strict=False,
        description="Seasons of the seasonal last value, as of weekdays or hours [rows].",
    )
    max_rows: int = Field(
        20_000, ge=10, description="Train rows that the linear rule is fitted on, spread [rows]."
    )
    max_inputs: int = Field(
        256, ge=1, description="Inputs of an example that the linear rule reads, spread."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldRule:
    """The rule of one fold."""

    fold_id: int
    name: str
    losses: Mapping[str, float]
    """Mean validation loss of each rule that applies, by name."""

    output: Tensor
    """Its output for the fold's test examples, shaped like the model's."""


Rule = Callable[[Workload, pd.DataFrame, RowRange, RowRange], Tensor]
"""From workload, frame, train rows and rows to predict to outputs; raises ``_Inapplicable`` where
it says nothing of such data."""


class _Inapplicable(Exception):
    """A rule does not apply to this workload."""


def best_rule(
    workload: Workload, frame: pd.DataFrame, fold: Fold, settings: SimpleRuleSettings
) -> FoldRule:
    """Return the simple rule with the lowest validation loss, with its output on the test rows.

    Rules: the workload's default baseline (mean of the train targets, or class shares); the last
    known target; the last one of the same season; a ridge or logistic regression on the inputs.

    Args:
        workload: One without a baseline of its own.
        frame: The feature frame.
        fold: Train rows fit, validation rows choose, test rows are predicted.
        settings: Seasons, and how much the linear rule may read.

    Raises:
        ContractError: Not even the default baseline applies to such targets.

    Cost:
        About 1 s for 20,000 rows of 256 inputs.
    """
    held_out = workload.examples(frame, fold.val)
    linear = partial(_linear, settings=settings)
    rules: dict[str, Rule] = {"last value": _last_value, "linear": linear}
    if not held_out.y.is_floating_point():
        rules = {"logistic": linear}
    else:
        seasons = {f"last value of the season of {n} rows": n for n in settings.season_rows}
        rules |= {name: _seasonal(n) for name, n in seasons.items()}
    # The default first: among equals the simplest stays.
    losses = {_default_name(held_out): _loss(workload, _default(workload, frame, fold), held_out)}
    for name, rule in rules.items():
        try:
            output = rule(workload, frame, fold.train, fold.val)
        except _Inapplicable:
            continue
        losses[name] = _loss(workload, output, held_out)
    known = {name: loss for name, loss in losses.items() if math.isfinite(loss)}
    chosen = min(known, key=lambda name: known[name]) if known else next(iter(losses))
    if chosen in rules:
        output = rules[chosen](workload, frame, fold.train, fold.test)
    else:
        output = workload.baseline(frame, fold)
    return FoldRule(fold_id=fold.fold_id, name=chosen, losses=losses, output=output)


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What a candidate has to beat while no version is in production."""

    name: str
    """For people."""

    outputs: Mapping[int, Tensor]
    """By fold: output for the test examples, shaped like the model's."""

    losses: Mapping[int, Mapping[str, float]]
    """By fold: mean validation loss of each simple rule; empty for the workload's own."""


def choose_baseline(
    workload: Workload,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
    settings: SimpleRuleSettings,
) -> Baseline:
    """Return the workload's own baseline or, without one, the best simple rule of each fold.

    Raises:
        ContractError: As ``Workload.baseline``.
    """
    if type(workload).baseline is not Workload.baseline:
        with users_code("baseline() of the workload"):
            own = {fold.fold_id: workload.baseline(frame, fold) for fold in folds}
        return Baseline(name="the workload's baseline", outputs=own, losses={})
    rules = [best_rule(workload, frame, fold, settings) for fold in folds]
    return Baseline(
        name=describe_rules([rule.name for rule in rules]),
        outputs={rule.fold_id: rule.output for rule in rules},
        losses={rule.fold_id: rule.losses for rule in rules},
    )


def describe_rules(chosen: Sequence[str]) -> str:
    """Return which rules the folds took, for people.

    >>> describe_rules(["linear", "last value", "last value"])
    'the best simple rule (last value in 2 of 3 folds, linear in 1)'
    """
    (first, most), *others = Counter(chosen).most_common()
    if not others:
        return f"the best simple rule ({first})"
    rest = ", ".join(f"{name} in {count}" for name, count in others)
    return f"the best simple rule ({first} in {most} of {len(chosen)} folds, {rest})"


def _default_name(examples: Examples) -> str:
    return "train mean" if examples.y.is_floating_point() else "class shares"


def _default(workload: Workload, frame: pd.DataFrame, fold: Fold) -> Tensor:
    return workload.baseline(frame, fold.model_copy(update={"test": fold.val}))


def _loss(workload: Workload, output: Tensor, examples: Examples) -> float:
    return float(workload.losses(output, examples.y).double().mean())


def _last_value(
    workload: Workload,
    frame: pd.DataFrame,
    train: RowRange,
    rows: RowRange,
) -> Tensor:
    """Predict the newest target that is known: that of ``horizon_rows`` earlier."""
    return _earlier(workload, frame, train, rows, lag=workload.horizon_rows)


def _seasonal(season: int) -> Rule:
    def rule(
        workload: Workload,
        frame: pd.DataFrame,
        train: RowRange,
        rows: RowRange,
    ) -> Tensor:
        whole = math.ceil(workload.horizon_rows / season) * season
        if whole == workload.horizon_rows:
            raise _Inapplicable  # the last value itself
        return _earlier(workload, frame, train, rows, lag=whole)

    return rule


def _earlier(
    workload: Workload, frame: pd.DataFrame, train: RowRange, rows: RowRange, *, lag: int
) -> Tensor:
    """Predict the target of ``lag`` rows earlier; the train mean where there is no such row."""
    if lag < 1 or workload.cluster_column is not None:
        raise _Inapplicable  # rows without an order in time, or several of one time
    wanted = workload.examples(frame, rows)
    _require_plain(workload, wanted)
    before = workload.examples(frame, RowRange(start=max(0, rows.start - lag), stop=rows.stop))
    place = pd.Index(before.rows).get_indexer(pd.Index(wanted.rows - lag))
    known = torch.from_numpy(place >= 0)
    mean = workload.examples(frame, train).y.mean(dim=0, keepdim=True)
    output = mean.expand_as(wanted.y).clone()
    output[known] = before.y[torch.from_numpy(place)[known]]
    return output


def _linear(
    workload: Workload,
    frame: pd.DataFrame,
    train: RowRange,
    rows: RowRange,
    *,
    settings: SimpleRuleSettings,
) -> Tensor:
    """Predict by ridge regression, or by logistic regression for classes."""
    known, wanted = workload.examples(frame, train), workload.examples(frame, rows)
    at = _spread(len(known), settings.max_rows)
    fit_NK, mean, deviation = _inputs(known.x[torch.from_numpy(at)], settings.max_inputs)
    asked_NK, *_ = _inputs(wanted.x, settings.max_inputs, scale=(mean, deviation))
    y = known.y[torch.from_numpy(at)]
    if y.is_floating_point():
        _require_plain(workload, wanted)
        output = _ridge(fit_NK, y.reshape(len(y), -1).double().numpy(), asked_NK)
        return torch.from_numpy(output).to(wanted.y.dtype).reshape(wanted.y.shape)
    shape = workload.output_shape(wanted.y)
    if y.ndim != 1 or len(shape) != 2:
        raise _Inapplicable
    return _logistic(fit_NK, y.numpy(), asked_NK, num_classes=shape[1])


def _ridge(
    fit_NK: NDArray[np.float64], y_NO: NDArray[np.float64], asked_NK: NDArray[np.float64]
) -> NDArray[np.float64]:
    from sklearn.linear_model import RidgeCV

    model = RidgeCV(alphas=np.logspace(-3, 4, 8) * max(1.0, len(fit_NK) / 1000)).fit(fit_NK, y_NO)
    output: NDArray[np.float64] = model.predict(asked_NK)
    return output


def _logistic(
    fit_NK: NDArray[np.float64],
    y_N: NDArray[np.int64],
    asked_NK: NDArray[np.float64],
    *,
    num_classes: int,
) -> Tensor:
    """Return log probabilities (N, C); a class without train rows is rare, not impossible."""
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    present = np.unique(y_N)
    if len(present) < 2 or present.min() < 0 or present.max() >= num_classes:
        raise _Inapplicable
    with warnings.catch_warnings():  # a rule that has not quite converged is a rule
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = LogisticRegression(max_iter=100).fit(fit_NK, y_N)
    floor = 1 / (len(y_N) + num_classes)
    share_NC = np.full((len(asked_NK), num_classes), floor)
    share_NC[:, model.classes_] = np.maximum(model.predict_proba(asked_NK), floor)
    return torch.from_numpy(np.log(share_NC / share_NC.sum(axis=1, keepdims=True))).float()


def _inputs(
    x: Tensor,
    max_inputs: int,
    *,
    scale: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return inputs (N, K) standardised, with mean and deviation; the last row of a window first.

    Inputs of windows beyond ``max_inputs`` are those of their newest rows, as far as they fit.
    """
    if not x.is_floating_point() and x.dtype != torch.uint8:
        raise _Inapplicable  # token ids are names, not amounts
    flat = x.flip(1) if x.ndim == 3 else x  # (N, L, D): newest row first
    flat = flat.reshape(len(x), -1)
    if x.ndim == 3:
        flat = flat[:, :max_inputs]
    else:
        flat = flat[:, torch.from_numpy(_spread(flat.shape[1], max_inputs))]
    values_NK = flat.double().numpy()
    mean, deviation = scale or (values_NK.mean(axis=0), values_NK.std(axis=0))
    values_NK = (values_NK - mean) / np.where(deviation > 0, deviation, 1.0)
    if not np.isfinite(values_NK).all():
        raise _Inapplicable
    return values_NK, mean, deviation


def _require_plain(workload: Workload, examples: Examples) -> None:
    """Refuse outputs that are something else than a prediction of the target."""
    same = tuple(workload.output_shape(examples.y)) == tuple(examples.y.shape)
    if not (examples.y.is_floating_point() and same):
        raise _Inapplicable


def _spread(count: int, wanted: int) -> NDArray[np.int64]:
    """Return at most ``wanted`` positions, evenly spread over ``count``."""
    if count <= wanted:
        return np.arange(count)
    return np.linspace(0, count - 1, wanted).astype(np.int64)
