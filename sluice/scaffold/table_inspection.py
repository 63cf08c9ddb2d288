"""Inspects a table, and guesses the task, the order of the rows, and the inputs."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sluice.base.errors import ContractError, SettingsError
from sluice.base.pluralize import pluralize
from sluice.base.settings import suggest_nearest
from sluice.config.poc_settings import PocSettings
from sluice.data.folds import FoldSettings, rows_needed
from sluice.failfast.data.data_loading import repeated_rows
from sluice.scaffold.dates import DateColumn, find_dates
from sluice.scaffold.feature_names import leave_out_ambiguous
from sluice.scaffold.guesses import FIRST_FOLDS, Guess, InputGuess, TableGuess
from sluice.scaffold.table_columns import (
    TEXT_WIDTH,
    TEXT_WIDTH_ALONE,
    guess_calendar,
    guess_input,
    is_target_copy,
    quote,
)
from sluice.scaffold.table_file import read_table_file
from sluice.scaffold.time_order import TimeOrder, find_time_order
from sluice.workloads.columns import as_labels
from sluice.workloads.repeated_inputs import are_separate_observations

MAX_CLASSES = 50
"""Maximum number of classes of a target."""

_MAX_INTEGER_CLASSES = 10
"""Integer targets count as classes only if they have at most this number of distinct values. With
more distinct values, they count as amounts."""

_MIN_CLASS_ROWS = 20
"""Integer targets count as classes only if the mean number of rows per distinct value is at least
this number. Targets with two distinct integers always count as classes."""

_MAX_LAG = 24
"""Maximum lag: distance from a row to the earlier row whose target is an input [rows]."""

_RARE_SHARE = 0.1
"""Two classes count as imbalanced if the share of the rarer class is below this value. With k
classes, the limit for the rarest class is this value divided by k - 1, but at least half of this
value."""

_MIN_RAREST_CLASS_ROWS = 30
"""A comment in the generated code warns if the rarest class has fewer rows than this number."""


def inspect_table(path: Path, target: str) -> TableGuess:
    """Read a table, and guess everything that the templates need.

    Args:
        path: CSV, Parquet or JSON lines file.
        target: Name of the column to predict.

    Raises:
        SourceError: The file cannot be read.
        SettingsError: The target is not a column; the message lists the columns.
        ContractError: The target is constant, has infinite values, has no value at all or has too
            many classes; no column can be an input; or the table has too few rows.
    """
    rows, source = read_table_file(path)
    _require_target(rows, path, target)
    num_missing = int(rows[target].isna().sum())
    dates = find_dates(rows.drop(columns=target))
    order = find_time_order(rows.drop(columns=target), dates)
    _require_rows(len(rows) - num_missing, path, has_time=order is not None)
    task, classes, notes = _guess_task(rows[target], path)
    if num_missing:
        notes = (
            f"{pluralize(num_missing, 'row')} without a target "
            f"{'is' if num_missing == 1 else 'are'} omitted.",
            *notes,
        )
    guesses = _guess_inputs(rows, target, dates, order)
    if order is not None:
        source |= {"index": order.column}
        if order.date_format:
            source |= {"date_format": order.date_format}
        guesses = _guess_time_inputs(rows, target, dates, order, str(task.value)) + guesses
    guesses = leave_out_ambiguous(_widen_text(guesses), target)
    inputs = [guess for guess in guesses if guess.code]
    if not inputs:
        guesses_text = (
            "; ".join(f"{guess.name} ({guess.reason})" for guess in guesses) or "the target alone"
        )
        raise ContractError(
            f"{path} has no column from which '{target}' could be predicted: {guesses_text}.",
            fix="Add columns with the inputs of the model.",
        )
    return TableGuess(
        data=path.name,
        num_rows=len(rows),
        source=source,
        order=_guess_order(order),
        index_kind=None if order is None else order.index_kind,
        has_repeated_times=order is not None and order.has_repeated_times,
        has_repeated_inputs=order is None
        and are_separate_observations(rows[list(dict.fromkeys(guess.name for guess in inputs))]),
        target=target,
        task=task,
        classes=classes,
        target_notes=notes,
        inputs=tuple(inputs),
        left_out=tuple(guess for guess in guesses if not guess.code),
        max_duplicate_share=_guess_duplicates(
            rows if order is None else rows.drop(columns=order.column)
        ),
    )


def _require_target(rows: pd.DataFrame, path: Path, target: str) -> None:
    names = [str(name) for name in rows.columns]
    if target not in names:
        raise SettingsError(
            f"{path} has no column '{target}'.{suggest_nearest(target, names)} Its columns: "
            f"{', '.join(names)}.",
            cause="The target is the name of the column to predict."
            if len(names) > 1
            else "The file has one column: it has no header line, or an unknown separator.",
            fix="Pass the name of one of these columns as --target.",
        )
    values = rows[target].dropna()
    if values.nunique() < 2:
        values_text = f"always {values.tolist()[0]!r}" if len(values) else "no value at all"
        raise ContractError(
            f"The target '{target}' of {path} must have at least two values, got {values_text}.",
            cause="A filter removed all other rows, or this is not the column to predict.",
            fix="Pass another --target, or correct the file.",
        )
    if len(names) < 2:
        raise ContractError(
            f"{path} has only the column '{target}', so no column can be an input.",
            fix="Add columns with the inputs of the model.",
        )


def _require_rows(num_rows: int, path: Path, *, has_time: bool) -> None:
    min_rows = required_rows(has_time=has_time)
    if num_rows < min_rows:
        raise ContractError(
            f"{path} must have at least {min_rows} rows with a target for train, validation and "
            f"test rows, got {num_rows}.",
            fix="Provide more rows.",
        )


def required_rows(*, has_time: bool) -> int:
    """Return the minimum number of rows with which the checks of the POC gate can decide."""
    poc_settings, embargo_rows = PocSettings(), 1 if has_time else 0
    folds = FoldSettings(**FIRST_FOLDS, embargo_rows=embargo_rows)
    train_rows = poc_settings.mini_min_rows + (_MAX_LAG if has_time else 0)
    return max(
        poc_settings.min_rows,
        rows_needed(folds, horizon_rows=embargo_rows, min_train_rows=train_rows),
    )


def _guess_task(
    series: "pd.Series[Any]", path: Path
) -> tuple[Guess, tuple[str, ...], tuple[str, ...]]:
    """Return the task, the classes, and remarks on the target."""
    values = series.dropna()
    num_distinct = int(values.nunique())
    is_number = values.dtype.kind in "iuf"
    if is_number and not np.isfinite(values.to_numpy(np.float64)).all():
        raise ContractError(
            f"The target '{series.name}' of {path} must be finite, got infinite values.",
            fix="Replace these values in the file.",
        )
    is_integer = is_number and bool((values % 1 == 0).all())
    are_classes = is_integer and (
        num_distinct == 2
        or (num_distinct <= _MAX_INTEGER_CLASSES and len(values) >= _MIN_CLASS_ROWS * num_distinct)
    )
    if is_number and not are_classes:
        reason = f"{num_distinct:,} distinct numbers from {values.min():.6g} to {values.max():.6g}"
        return Guess(value="regression", reason=reason), (), ()
    counts = as_labels(values).value_counts()
    if len(counts) > MAX_CLASSES:
        raise ContractError(
            f"The target '{series.name}' of {path} must be a number or have at most {MAX_CLASSES} "
            f"classes, got {len(counts):,} distinct values such as {values.tolist()[0]!r}.",
            cause="The column is text or an identifier, or its numbers contain a unit.",
            fix="Pass another --target, or convert the column to numbers or fewer classes.",
        )
    value_kind = "integers" if is_number else "labels"
    ordered_classes = sorted(counts.index, key=(lambda label: float(label)) if is_number else str)
    rarest_class = counts.index[-1]
    share, num_rows = counts.iloc[-1] / len(values), int(counts.iloc[-1])
    notes = []
    if share < _RARE_SHARE / max(1, len(counts) - 1) or share < _RARE_SHARE / 2:
        notes.append(
            f"Imbalanced: class {rarest_class!r} has {num_rows:,} of {len(values):,} rows "
            f"({share:.1%}). Accuracy is not informative; macro_f1 and balanced_accuracy count "
            "every class equally."
        )
    if num_rows < _MIN_RAREST_CLASS_ROWS:
        notes.append(
            f"Class {rarest_class!r} has too few rows to be learned or evaluated reliably."
        )
    reason = f"{len(counts)} distinct {value_kind}"
    return (
        Guess(value="classification", reason=reason),
        tuple(map(str, ordered_classes)),
        tuple(notes),
    )


def _guess_inputs(
    rows: pd.DataFrame, target: str, dates: Mapping[str, DateColumn], order: TimeOrder | None
) -> list[InputGuess]:
    inputs = []
    for name in rows.columns:
        if name == target or (order is not None and name == order.column):
            continue
        if is_target_copy(rows[name], rows[target]):
            inputs.append(InputGuess(name=name, code="", reason="it determines the target"))
        elif name in dates and dates[name].format:
            reason = f"dates in the format {dates[name].format}: convert them in your class"
            inputs.append(InputGuess(name=name, code="", reason=reason))
        else:
            inputs.append(guess_input(rows[name], dates=dates.get(name)))
    return inputs


def _guess_time_inputs(
    rows: pd.DataFrame,
    target: str,
    dates: Mapping[str, DateColumn],
    order: TimeOrder,
    task: str,
) -> list[InputGuess]:
    """Return calendar features of dates and, if suitable, lags of the target.

    Lags are suitable for a regression in which every time has one row and every row has a
    target.
    """
    inputs = []
    if order.column in dates:
        calendar = guess_calendar(order.column, dates[order.column])
        inputs = [calendar] if calendar.code else []
    if task != "regression" or order.has_repeated_times or rows[target].isna().any():
        return inputs
    # Length of each season [rows], and the range of row intervals [days] for which it is assumed:
    # seven days of a week, 24 hours of a day, twelve months of a year.
    seasons = {7: (0.9, 1.5), _MAX_LAG: (0.03, 0.05), 12: (27.0, 32.0)}
    interval_days = order.interval_days
    seasonal_lags = [lag for lag, (low, high) in seasons.items() if low <= interval_days <= high]
    for lag in (1, *seasonal_lags):
        inputs.append(
            InputGuess(
                name=f"{target}, {lag} earlier",
                kind="Lag",
                code=f"Lag({quote(target)}, {lag})",
                reason="an earlier target; remove this input if it is unknown when you predict",
            )
        )
    return inputs


def _guess_order(order: TimeOrder | None) -> Guess:
    if order is None:
        reason = (
            "No column has a date in every row that could order the rows, so they count as "
            "independent."
        )
        return Guess(value="hash", reason=reason)
    return Guess(value="time", reason=order.reason)


def _widen_text(guesses: list[InputGuess]) -> list[InputGuess]:
    """Return the guesses; if all inputs are texts, each gets ``TEXT_WIDTH_ALONE`` features."""
    if any(guess.code and guess.kind != "Text" for guess in guesses):
        return guesses
    old_argument, new_argument = f"width={TEXT_WIDTH})", f"width={TEXT_WIDTH_ALONE})"
    return [
        replace(
            guess,
            code=guess.code.replace(old_argument, new_argument),
            reason=guess.reason.replace(f"{TEXT_WIDTH} columns", f"{TEXT_WIDTH_ALONE} columns"),
        )
        for guess in guesses
    ]


def _guess_duplicates(rows: pd.DataFrame) -> Guess | None:
    """Return a limit above the share of duplicate rows; None if the default limit is sufficient."""
    share = float(repeated_rows(rows).mean())
    if share <= PocSettings().max_duplicate_share:
        return None
    reason = (
        f"{share:.1%} of the rows repeat another row. If this is a mistake of an export, remove "
        "these rows: copies of train rows among the test rows make a model look too good."
    )
    return Guess(value=min(1.0, round(1.2 * share + 0.01, 2)), reason=reason)
