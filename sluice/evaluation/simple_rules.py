"""Simple rules that a candidate must beat where the workload brings no baseline of its own.

A rule is fitted on train rows. Each fold takes the rule with the lowest loss on its validation
rows, so that test rows choose nothing.

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
from pydantic import Field
from torch import Tensor

from sluice.base.errors import ContractError
from sluice.base.settings import Settings
from sluice.data.folds import Fold, RowRange
from sluice.findings.user_code import users_code
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


class _Inapplicable(Exception):
    """A rule does not apply to this workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Examples to predict, and the newest inputs of each, bounded by the settings."""

    y: Tensor
    rows: NDArray[np.int64]
    input_NK: NDArray[np.float64] | None
    """None where inputs are no amounts, as token ids are not."""

    @classmethod
    def of(cls, examples: Examples, settings: SimpleRuleSettings) -> "_Rows":
        """Take the examples of some rows."""
        return cls(
            y=examples.y,
            rows=examples.rows,
            input_NK=_inputs(examples.x, settings.max_inputs),
        )


Rule = Callable[[Workload, _Rows, _Rows, _Rows], Tensor]
"""From train rows, all rows whose targets may be known, and rows to predict to outputs; raises
``_Inapplicable`` where it says nothing of such data."""


def best_rule(
    workload: Workload, frame: pd.DataFrame, fold: Fold, settings: SimpleRuleSettings
) -> FoldRule:
    """Return the simple rule with the lowest validation loss, with its output on the test rows.

    Rules: the workload's default baseline (mean of the train targets, or class shares); the last
    known target or class; the last one of the same season; a ridge or logistic regression on the
    inputs.

    Args:
        workload: One without a baseline of its own.
        frame: The feature frame.
        fold: Train rows fit, validation rows choose, test rows are predicted.
        settings: Seasons, and how much the linear rule may read.

    Raises:
        ContractError: Not even the default baseline applies to such targets.

    Cost:
        The examples of each split are made once; besides them, memory for ``max_inputs`` numbers a
        row.
    """
    train, val, test = (
        _Rows.of(workload.examples(frame, part), settings)
        for part in (fold.train, fold.val, fold.test)
    )
    rules = _rules(val, settings)
    # The default first: among equals the simplest stays.
    on_val = fold.model_copy(update={"test": fold.val})
    losses = {_default_name(val): _loss(workload, workload.baseline(frame, on_val), val)}
    known = _with_past(workload, frame, fold.val, val, settings)
    for name, rule in rules.items():
        with contextlib.suppress(_Inapplicable):
            losses[name] = _loss(workload, rule(workload, train, known, val), val)
    finite = {name: loss for name, loss in losses.items() if math.isfinite(loss)}
    chosen = min(finite, key=lambda name: finite[name]) if finite else next(iter(losses))
    if chosen in rules:
        known = _with_past(workload, frame, fold.test, test, settings)
        output = rules[chosen](workload, train, known, test)
    else:
        output = workload.baseline(frame, fold)
    return FoldRule(fold_id=fold.fold_id, name=chosen, losses=losses, output=output)


def _rules(rows: _Rows, settings: SimpleRuleSettings) -> dict[str, Rule]:
    linear = partial(_linear, settings=settings)
    if not rows.y.is_floating_point():
        return {"last class": _last_class, "logistic": linear}
    seasons = {f"last value of the season of {n} rows": n for n in settings.season_rows}
    return {
        "last value": _last_value,
        "linear": linear,
        **{name: _seasonal(season) for name, season in seasons.items()},
    }


def _with_past(
    workload: Workload,
    frame: pd.DataFrame,
    part: RowRange,
    rows: _Rows,
    settings: SimpleRuleSettings,
) -> _Rows:
    """Return rows with those before them whose targets a rule may look up, also of an embargo."""
    span = workload.horizon_rows + max(settings.season_rows, default=0)
    start = max(0, part.start - span)
    if start == part.start:
        return rows
    try:
        past = workload.examples(frame, RowRange(start=start, stop=part.start))
    except ContractError:  # too near the beginning for a window
        return rows
    return _Rows(
        y=torch.cat([past.y, rows.y]),
        rows=np.concatenate([past.rows, rows.rows]),
        input_NK=None,
    )


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


def _default_name(rows: _Rows) -> str:
    return "train mean" if rows.y.is_floating_point() else "class shares"


def _loss(workload: Workload, output: Tensor, rows: _Rows) -> float:
    return float(workload.losses(output, rows.y).double().mean())


def _last_value(workload: Workload, train: _Rows, known: _Rows, wanted: _Rows) -> Tensor:
    """Predict the newest target that is known: that of ``horizon_rows`` earlier."""
    return _earlier(workload, train, known, wanted, lag=workload.horizon_rows)


def _seasonal(season: int) -> Rule:
    def rule(workload: Workload, train: _Rows, known: _Rows, wanted: _Rows) -> Tensor:
        lag = math.ceil(workload.horizon_rows / season) * season
        if lag == workload.horizon_rows:
            raise _Inapplicable  # the last value itself
        return _earlier(workload, train, known, wanted, lag=lag)

    return rule


def _earlier(workload: Workload, train: _Rows, known: _Rows, wanted: _Rows, *, lag: int) -> Tensor:
    """Predict the target of ``lag`` rows earlier; the train mean where none is known."""
    same = tuple(workload.output_shape(wanted.y)) == tuple(wanted.y.shape)
    if not (wanted.y.is_floating_point() and same):
        raise _Inapplicable  # outputs mean something else than the target
    found, place = _find_earlier(workload, known, wanted, lag=lag)
    output = train.y.mean(dim=0, keepdim=True).expand_as(wanted.y).clone()
    output[found] = known.y[place][found]
    return output


def _last_class(workload: Workload, train: _Rows, known: _Rows, wanted: _Rows) -> Tensor:
    """Predict log shares (N, C) of the classes that followed the newest known class."""
    shape = workload.output_shape(wanted.y)
    if wanted.y.ndim != 1 or len(shape) != 2:
        raise _Inapplicable
    lag, classes = workload.horizon_rows, shape[1]
    found, place = _find_earlier(workload, train, train, lag=lag)
    pairs = torch.stack([train.y[place][found], train.y[found]]).long()
    # One is added to each count: what was never seen is rare, not impossible.
    counts = torch.ones(classes, classes)
    counts.index_put_((pairs[0], pairs[1]), torch.ones(pairs.shape[1]), accumulate=True)
    overall = torch.bincount(train.y.long(), minlength=classes) + 1
    found, place = _find_earlier(workload, known, wanted, lag=lag)
    share = (overall / overall.sum()).expand(len(wanted.y), classes).clone()
    followed = counts / counts.sum(dim=1, keepdim=True)
    share[found] = followed[known.y[place][found].long()]
    return share.log()


def _find_earlier(
    workload: Workload, known: _Rows, wanted: _Rows, *, lag: int
) -> tuple[Tensor, Tensor]:
    """Return for each wanted row whether the row ``lag`` before it is known, and its place."""
    if lag < 1 or workload.cluster_column is not None:
        raise _Inapplicable  # rows without an order in time, or several of one time
    place = torch.from_numpy(pd.Index(known.rows).get_indexer(pd.Index(wanted.rows - lag)))
    return place >= 0, place


def _linear(
    workload: Workload,
    train: _Rows,
    known: _Rows,  # noqa: ARG001 - the signature of every rule
    wanted: _Rows,
    *,
    settings: SimpleRuleSettings,
) -> Tensor:
    """Predict by ridge regression, or by logistic regression for classes."""
    if train.input_NK is None or wanted.input_NK is None:
        raise _Inapplicable
    at = _spread(len(train.y), settings.max_rows)
    fit_NK, y = train.input_NK[at], train.y[torch.from_numpy(at)]
    mean, deviation = fit_NK.mean(axis=0), fit_NK.std(axis=0)
    scale = np.where(deviation > 0, deviation, 1.0)
    fit_NK, asked_NK = (fit_NK - mean) / scale, (wanted.input_NK - mean) / scale
    if not (np.isfinite(fit_NK).all() and np.isfinite(asked_NK).all()):
        raise _Inapplicable
    shape = workload.output_shape(wanted.y)
    if y.is_floating_point():
        if tuple(shape) != tuple(wanted.y.shape):
            raise _Inapplicable
        output = _ridge(fit_NK, y.reshape(len(y), -1).double().numpy(), asked_NK)
        return torch.from_numpy(output).to(wanted.y.dtype).reshape(wanted.y.shape)
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


def _inputs(x: Tensor, max_inputs: int) -> NDArray[np.float64] | None:
    """Return at most ``max_inputs`` inputs of each example (N, K); None for token ids.

    Of windows those of the newest rows, as far as they fit; of anything else spread ones.
    """
    if not x.is_floating_point() and x.dtype != torch.uint8:
        return None  # token ids are names, not amounts
    if x.ndim == 3:  # (N, L, D)
        steps = max(1, math.ceil(max_inputs / max(1, x.shape[2])))
        x = x[:, -steps:].flip(1)
        flat = x.reshape(len(x), -1)[:, :max_inputs]
    else:
        flat = x.reshape(len(x), -1)
        flat = flat[:, torch.from_numpy(_spread(flat.shape[1], max_inputs))]
    return flat.double().numpy()


def _spread(count: int, wanted: int) -> NDArray[np.int64]:
    """Return at most ``wanted`` positions, evenly spread over ``count``."""
    if count <= wanted:
        return np.arange(count)
    return np.linspace(0, count - 1, wanted).astype(np.int64)
