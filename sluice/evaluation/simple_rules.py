"""Simple baseline rules that a candidate must beat if the workload defines no baseline.

Rules are fitted on train rows. For each fold, the rule with the lowest validation loss is used, so
test rows do not affect the selection.

Shape legend: N = examples, O = outputs, C = classes, K = inputs of an example, flattened.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pydantic import Field, field_validator
from torch import Tensor

from sluice.base.errors import ContractError
from sluice.base.settings import Settings
from sluice.data.folds import Fold, RowRange
from sluice.data.rows.protocol import RowSource, read_all_as_tensor
from sluice.findings.user_code import wrap_user_errors
from sluice.training.prediction import read_in_chunks
from sluice.workloads.workload import Examples, Workload


class BaselineSettings(Settings):
    """Settings of the baseline: limits of its simple rules, or a model that replaces them."""

    predictions: str | None = Field(
        None,
        pattern=r"^mlflow:/[^/@]+/[1-9][0-9]*$",
        description="URI of a model, mlflow:/NAME/VERSION, whose imported predictions are the "
        "baseline until the first promotion; import them with 'sluice registry import'. With null, "
        "the baseline is that of the workload or, without one, the best simple rule.",
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


class _RuleNotApplicable(Exception):
    """Raised by a rule that does not apply to the data of the workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _RuleData:
    """Targets, row positions and a limited number of inputs of examples."""

    y: Tensor
    rows: NDArray[np.int64]
    input_NK: NDArray[np.float64] | None
    """Inputs of each example; None if they are not quantities, such as token ids, or not needed."""

    @classmethod
    def of(cls, examples: Examples, settings: BaselineSettings) -> "_RuleData":
        """Return the targets, positions and inputs of examples."""
        return cls(
            y=examples.targets,
            rows=examples.rows,
            input_NK=_read_inputs(examples, settings.max_inputs),
        )


BaselineRule = Callable[[Workload, _RuleData, _RuleData, _RuleData], Tensor]
"""Function of (workload, train rows, rows for lagged targets, rows to predict) that returns
outputs. It raises ``_RuleNotApplicable`` for data to which the rule does not apply."""


def best_rule(
    workload: Workload, frame: pd.DataFrame, fold: Fold, settings: BaselineSettings
) -> FoldRule:
    """Return the simple rule with the lowest validation loss, with its output on the test rows.

    The rules are: the default baseline (mean of the train targets, or class shares); the last
    known target or class; the last known target of the same season; a ridge or logistic regression
    on the inputs.

    Args:
        workload: Workload without its own baseline.
        frame: Feature frame.
        fold: Fold; rules are fitted on train rows and selected on validation rows.
        settings: Season lengths, and limits of the linear rule.

    Raises:
        ContractError: Not even the default baseline applies to these targets.

    Cost:
        Creates the examples of each split once. Memory: ``max_inputs`` floats per row.
    """
    train, val, test = (
        _RuleData.of(workload.examples(frame, part), settings)
        for part in (fold.train, fold.val, fold.test)
    )
    rules = _rules(val, settings)
    # The default baseline is first, so that the simplest rule is selected if losses are equal.
    validation_fold = fold.model_copy(update={"test": fold.val})
    losses = {
        _default_rule_name(val): _loss(workload, _baseline(workload, frame, validation_fold), val)
    }
    known_rows = _with_past(workload, frame, fold.val, val, settings)
    for name, rule in rules.items():
        with contextlib.suppress(_RuleNotApplicable):
            losses[name] = _loss(workload, rule(workload, train, known_rows, val), val)
    finite_losses = {name: loss for name, loss in losses.items() if math.isfinite(loss)}
    best = (
        min(finite_losses, key=lambda name: finite_losses[name])
        if finite_losses
        else next(iter(losses))
    )
    if best in rules:
        known_rows = _with_past(workload, frame, fold.test, test, settings)
        output = rules[best](workload, train, known_rows, test)
    else:
        output = _baseline(workload, frame, fold)
    return FoldRule(fold_id=fold.fold_id, name=best, losses=losses, output=output)


def _rules(rows: _RuleData, settings: BaselineSettings) -> dict[str, BaselineRule]:
    linear = partial(_linear, settings=settings)
    if not rows.y.is_floating_point():
        return {"last class": _last_class, "logistic": linear}
    seasons = {f"seasonal last value, {n} rows": n for n in settings.season_rows}
    return {
        "last value": _last_value,
        "linear": linear,
        **{name: _seasonal_rule(season) for name, season in seasons.items()},
    }


def _with_past(
    workload: Workload,
    frame: pd.DataFrame,
    part: RowRange,
    rows: _RuleData,
    settings: BaselineSettings,
) -> _RuleData:
    """Return the rows, preceded by as many earlier rows as the longest lag requires."""
    max_lag = workload.horizon_rows + max(settings.season_rows, default=0)
    start = max(0, part.start - max_lag)
    if start == part.start:
        return rows
    try:
        past = workload.examples(frame, RowRange(start=start, stop=part.start))
    except ContractError:  # the rows are too close to the start of the frame for a window
        return rows
    return _RuleData(
        y=torch.cat([past.targets, rows.y]),
        rows=np.concatenate([past.rows, rows.rows]),
        input_NK=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Reference of a candidate while no version is in production."""

    name: str
    """Display name."""

    outputs: Mapping[int, Tensor | RowSource]
    """Output for the test examples of each fold, with the shape of the model's output."""

    losses: Mapping[int, Mapping[str, float]]
    """Mean validation loss of each simple rule, by fold; empty for another baseline."""


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
    (first, first_count), *others = Counter(names).most_common()
    if not others:
        return f"the best simple rule ({first})"
    other_counts = ", ".join(f"{name} in {count}" for name, count in others)
    return f"the best simple rule ({first} in {first_count} of {len(names)} folds, {other_counts})"


def _baseline(workload: Workload, frame: pd.DataFrame, fold: Fold) -> Tensor:
    return read_all_as_tensor(workload.baseline(frame, fold), what="baseline predictions")


def _default_rule_name(rows: _RuleData) -> str:
    return "train mean" if rows.y.is_floating_point() else "class shares"


def _loss(workload: Workload, output: Tensor, rows: _RuleData) -> float:
    return float(workload.losses(output, rows.y).double().mean())


def _last_value(
    workload: Workload, train: _RuleData, known_rows: _RuleData, to_predict: _RuleData
) -> Tensor:
    """Predict the newest known target, which is ``horizon_rows`` earlier."""
    return _earlier_target(workload, train, known_rows, to_predict, lag=workload.horizon_rows)


def _seasonal_rule(season: int) -> BaselineRule:
    """Return the rule that predicts the newest known target of the same season."""

    def rule(
        workload: Workload, train: _RuleData, known_rows: _RuleData, to_predict: _RuleData
    ) -> Tensor:
        lag = math.ceil(workload.horizon_rows / season) * season
        if lag == workload.horizon_rows:
            raise _RuleNotApplicable  # the rule would be the same as "last value"
        return _earlier_target(workload, train, known_rows, to_predict, lag=lag)

    return rule


def _earlier_target(
    workload: Workload, train: _RuleData, known_rows: _RuleData, to_predict: _RuleData, *, lag: int
) -> Tensor:
    """Predict the target of ``lag`` rows earlier, or the train mean where it is unknown."""
    has_target_shape = tuple(workload.output_shape(to_predict.y)) == tuple(to_predict.y.shape)
    if not (to_predict.y.is_floating_point() and has_target_shape):
        raise _RuleNotApplicable  # the output is not a prediction of the target itself
    is_known, position = _find_earlier(workload, known_rows, to_predict, lag=lag)
    output = train.y.mean(dim=0, keepdim=True).expand_as(to_predict.y).clone()
    output[is_known] = known_rows.y[position][is_known]
    return output


def _last_class(
    workload: Workload, train: _RuleData, known_rows: _RuleData, to_predict: _RuleData
) -> Tensor:
    """Predict log frequencies (N, C) of the classes that follow the newest known class."""
    shape = workload.output_shape(to_predict.y)
    if to_predict.y.ndim != 1 or len(shape) != 2:
        raise _RuleNotApplicable
    lag, num_classes = workload.horizon_rows, shape[1]
    is_known, position = _find_earlier(workload, train, train, lag=lag)
    transitions = torch.stack([train.y[position][is_known], train.y[is_known]]).long()
    # Counts start at one (Laplace smoothing), so that no share is 0.
    counts = torch.ones(num_classes, num_classes)
    counts.index_put_(
        (transitions[0], transitions[1]), torch.ones(transitions.shape[1]), accumulate=True
    )
    class_counts = torch.bincount(train.y.long(), minlength=num_classes) + 1
    is_known, position = _find_earlier(workload, known_rows, to_predict, lag=lag)
    share_NC = (class_counts / class_counts.sum()).expand(len(to_predict.y), num_classes).clone()
    share_after_class = counts / counts.sum(dim=1, keepdim=True)
    share_NC[is_known] = share_after_class[known_rows.y[position][is_known].long()]
    return share_NC.log()


def _find_earlier(
    workload: Workload, known_rows: _RuleData, to_predict: _RuleData, *, lag: int
) -> tuple[Tensor, Tensor]:
    """Return whether the row ``lag`` rows before each row to predict is known, and its position."""
    if lag < 1 or workload.cluster_column is not None:
        # The rows have no order in time, or there are several rows per time.
        raise _RuleNotApplicable
    position = torch.from_numpy(
        pd.Index(known_rows.rows).get_indexer(pd.Index(to_predict.rows - lag))
    )
    return position >= 0, position


def _linear(
    workload: Workload,
    train: _RuleData,
    known_rows: _RuleData,  # noqa: ARG001 - signature of all rules
    to_predict: _RuleData,
    *,
    settings: BaselineSettings,
) -> Tensor:
    """Predict with ridge regression, or with logistic regression for classes."""
    if train.input_NK is None or to_predict.input_NK is None:
        raise _RuleNotApplicable
    fit_rows = _evenly_spaced(len(train.y), settings.max_rows)
    fit_NK, y = train.input_NK[fit_rows], train.y[torch.from_numpy(fit_rows)]
    mean, deviation = fit_NK.mean(axis=0), fit_NK.std(axis=0)
    scale = np.where(deviation > 0, deviation, 1.0)
    fit_NK, input_NK = (fit_NK - mean) / scale, (to_predict.input_NK - mean) / scale
    if not (np.isfinite(fit_NK).all() and np.isfinite(input_NK).all()):
        raise _RuleNotApplicable
    shape = workload.output_shape(to_predict.y)
    if y.is_floating_point():
        if tuple(shape) != tuple(to_predict.y.shape):
            raise _RuleNotApplicable
        output = _ridge(fit_NK, y.reshape(len(y), -1).double().numpy(), input_NK)
        return torch.from_numpy(output).to(to_predict.y.dtype).reshape(to_predict.y.shape)
    if y.ndim != 1 or len(shape) != 2:
        raise _RuleNotApplicable
    return _logistic(fit_NK, y.numpy(), input_NK, num_classes=shape[1])


def _ridge(
    fit_NK: NDArray[np.float64], y_NO: NDArray[np.float64], input_NK: NDArray[np.float64]
) -> NDArray[np.float64]:
    from sklearn.linear_model import RidgeCV

    model = RidgeCV(alphas=np.logspace(-3, 4, 8) * max(1.0, len(fit_NK) / 1000)).fit(fit_NK, y_NO)
    output: NDArray[np.float64] = model.predict(input_NK)
    return output


def _logistic(
    fit_NK: NDArray[np.float64],
    y_N: NDArray[np.int64],
    input_NK: NDArray[np.float64],
    *,
    num_classes: int,
) -> Tensor:
    """Return log probabilities (N, C), with a floor for classes without train rows."""
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    train_classes = np.unique(y_N)
    if len(train_classes) < 2 or train_classes.min() < 0 or train_classes.max() >= num_classes:
        raise _RuleNotApplicable
    with warnings.catch_warnings():  # a baseline is valid even if it has not converged
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = LogisticRegression(max_iter=100).fit(fit_NK, y_N)
    floor = 1 / (len(y_N) + num_classes)
    share_NC = np.full((len(input_NK), num_classes), floor)
    share_NC[:, model.classes_] = np.maximum(model.predict_proba(input_NK), floor)
    return torch.from_numpy(np.log(share_NC / share_NC.sum(axis=1, keepdims=True))).float()


def _read_inputs(examples: Examples, max_inputs: int) -> NDArray[np.float64] | None:
    """Return at most ``max_inputs`` inputs of each example (N, K); None for dicts and token ids."""
    parts = []
    for part in read_in_chunks(examples.x):
        values = _flatten_inputs(part, max_inputs) if isinstance(part, Tensor) else None
        if values is None:
            return None
        parts.append(values)
    return np.concatenate(parts)


def _flatten_inputs(x: Tensor, max_inputs: int) -> NDArray[np.float64] | None:
    """Return at most ``max_inputs`` inputs of each example (N, K); None for token ids.

    Of a window the newest inputs are used; of other inputs an evenly spaced subset.
    """
    if not x.is_floating_point() and x.dtype != torch.uint8:
        return None  # token ids are not quantities
    if x.ndim == 3:  # (N, L, D)
        steps = max(1, math.ceil(max_inputs / max(1, x.shape[2])))
        x = x[:, -steps:].flip(1)
        flat = x.reshape(len(x), -1)[:, :max_inputs]
    else:
        flat = x.reshape(len(x), -1)
        flat = flat[:, torch.from_numpy(_evenly_spaced(flat.shape[1], max_inputs))]
    return flat.double().numpy()


def _evenly_spaced(count: int, max_positions: int) -> NDArray[np.int64]:
    """Return at most ``max_positions`` positions, evenly spaced from 0 to ``count`` - 1."""
    if count <= max_positions:
        return np.arange(count)
    return np.linspace(0, count - 1, max_positions).astype(np.int64)
