"""Decides for each column of a table how it becomes an input, or why it is left out."""

import json
import re
from typing import Any

import numpy as np
import pandas as pd

from sluice.base.pluralize import pluralize
from sluice.scaffold.dates import DateColumn, as_date_column
from sluice.scaffold.guesses import InputGuess
from sluice.workloads.columns import as_labels

MAX_CATEGORY_VALUES = 20
"""Maximum number of values of a categorical column that become features. The most frequent values
are used."""

TEXT_WIDTH, TEXT_WIDTH_ALONE = 64, 256
"""Number of features of a text column: with other kinds of inputs, and if all inputs are texts."""

_MIN_TEXT_WORDS = 3.0
"""A column counts as text if it has at least this mean number of words per row, and more than
``MAX_CATEGORY_VALUES`` distinct values."""

_MAX_DISTINCT_SHARE = 0.5
"""A column counts as an identifier if its ratio of distinct values to rows is above this value. The
column must also have more than ``MAX_CATEGORY_VALUES`` distinct values, and be neither text nor
numeric."""

_MIN_NUMBER_SHARE = 0.8
"""A text column counts as numeric if more than this share of its values are numbers. The column
must also have more than ``MAX_CATEGORY_VALUES`` distinct values. Values that are no numbers then
count as markers of missing values, such as '?', and the column is left out."""

_COPY_CORRELATION = 0.9999
"""A column counts as a copy of the target if their absolute correlation is above this value."""

_IDENTIFIER_NAME = re.compile(
    r"(?i:^(unnamed: \d+|index|row|id|uuid|guid)$|[_ ]id$)|(?<=[a-z])I[dD]$"
)
"""Matches column names of identifiers, such as user_id and userId, but not paid."""

_DECORATED_NUMBER = re.compile(
    r"^\s*[$\u20ac\u00a3]?\s*-?\d[\d., ]*\s*(%|[a-zA-Z$\u20ac\u00a3]{1,4})?\s*$"
)
"""Matches a number with a unit, a currency sign or separators."""


def quote(text: str) -> str:
    """Return a text as a Python literal in double quotes."""
    return json.dumps(text, ensure_ascii=False)


def guess_input(series: "pd.Series[Any]", *, dates: DateColumn | None) -> InputGuess:
    """Return how a column becomes an input, with the reason.

    Args:
        series: The column.
        dates: The column as dates; None if it contains other values.
    """
    name = str(series.name)
    if dates is not None:
        return guess_calendar(name, dates)
    num_missing = int(series.isna().sum())
    if num_missing == len(series):
        return _excluded_input(name, "every value is missing")
    if any(isinstance(value, dict | list) for value in series.head(100)):
        return _excluded_input(
            name, "its values are nested; compute features from them in your class"
        )
    if series.dropna().nunique() == 1:
        return _excluded_input(name, f"constant, always {series.dropna().tolist()[0]!r}")
    if num_missing and as_date_column(_as_integers(series.dropna())) is not None:
        return _excluded_input(
            name,
            f"{pluralize(num_missing, 'date')} missing; a column with a date in every row could "
            "order the rows in time",
        )
    if series.dtype.kind in "iuf":
        return _guess_number(series, num_missing)
    return _guess_text_or_category(series, num_missing)


def _as_integers(series: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return whole numbers as integers; pandas reads integers with missing values as floats."""
    if series.dtype.kind != "f" or not ((series % 1 == 0) & (series.abs() < 2**53)).all():
        return series
    return series.astype("int64")


def guess_calendar(name: str, column: DateColumn) -> InputGuess:
    """Return an input with the calendar features (hour, weekday, day of the year) that vary."""
    date = column.dates.dt
    features = [
        feature
        for feature, values in (("hour", date.hour), ("weekday", date.day_of_week))
        if values.nunique() > 1
    ]
    if (column.dates.max() - column.dates.min()).days > 180:
        features.append("yearday")
    if not features:
        return _excluded_input(name, "dates of a single weekday within half a year")
    quoted_features = ", ".join(f'"{feature}"' for feature in features)
    comma = "," if len(features) == 1 else ""
    return InputGuess(
        name=name,
        kind="Calendar",
        code=f"Calendar({quote(name)}, ({quoted_features}{comma}))",
        reason=f"dates, {column.dates.min():%Y-%m-%d} to {column.dates.max():%Y-%m-%d}, as "
        "cyclic features",
    )


def is_target_copy(series: "pd.Series[Any]", target: "pd.Series[Any]") -> bool:
    """Return whether a column is a scaled copy of the target, or has other labels for its classes.

    Such a column reveals the target. Labels are compared only if they have at least ten rows each
    on average.
    """
    is_present = series.notna() & target.notna()
    if is_present.sum() < 3:
        return False
    column_values, target_values = series[is_present], target[is_present]
    if column_values.dtype.kind in "iuf" and target_values.dtype.kind in "iuf":
        x, y = column_values.to_numpy(np.float64), target_values.to_numpy(np.float64)
        if not (np.isfinite(x).all() and x.std() > 0 and y.std() > 0):
            return False
        return bool(abs(np.corrcoef(x, y)[0, 1]) > _COPY_CORRELATION)
    labels, classes = as_labels(column_values), as_labels(target_values)
    num_labels, num_classes = labels.nunique(), classes.nunique()
    if num_labels != num_classes or num_labels > len(column_values) / 10:
        return False
    return bool(classes.groupby(labels).nunique().max() == 1)


def _guess_number(series: "pd.Series[Any]", num_missing: int) -> InputGuess:
    name, values = str(series.name), series.dropna()
    num_distinct = int(values.nunique())
    if np.isinf(values.to_numpy(np.float64)).any():
        return _excluded_input(name, "infinite values; replace them in the data")
    is_integer = bool((values % 1 == 0).all())
    if is_integer and num_distinct == len(series) and _is_identifier(values, name):
        return _excluded_input(name, "identifier: a different integer in every row")
    low, high = f"{values.min():.6g}", f"{values.max():.6g}"
    reason = f"{low} to {high}"
    if is_integer and num_distinct <= 10:
        reason += f"; {num_distinct} integers, used as an amount"
    if not num_missing:
        return InputGuess(name=name, kind="Number", code=f"Number({quote(name)})", reason=reason)
    median = float(f"{values.median():.6g}")
    return InputGuess(
        name=name,
        kind="Number",
        code=f"Number({quote(name)}, fill={median})",
        reason=f"{reason}; {_format_count(num_missing, series)} missing, filled with the median; "
        "a second feature marks them",
    )


def _is_identifier(values: "pd.Series[Any]", name: str) -> bool:
    """Return whether distinct integers are consecutive, or the column has an identifier's name."""
    is_consecutive = values.max() - values.min() + 1 == len(values)
    return bool(is_consecutive or _IDENTIFIER_NAME.search(name))


def _guess_text_or_category(series: "pd.Series[Any]", num_missing: int) -> InputGuess:
    name, labels = str(series.name), as_labels(series).dropna()
    num_distinct = int(labels.nunique())
    mean_words = float(np.mean([len(str(label).split()) for label in labels.head(2_000)]))
    if mean_words >= _MIN_TEXT_WORDS and num_distinct > MAX_CATEGORY_VALUES:
        missing_note = (
            f"; {_format_count(num_missing, series)} missing, as a text without words"
            if num_missing
            else ""
        )
        return InputGuess(
            name=name,
            kind="Text",
            code=f"Text({quote(name)}, width={TEXT_WIDTH})",
            reason=f"text with {mean_words:.0f} words on average, hashed to {TEXT_WIDTH} columns"
            f"{missing_note}",
        )
    number_mask = pd.to_numeric(labels, errors="coerce").notna()
    if num_distinct > MAX_CATEGORY_VALUES and number_mask.all():
        return _excluded_input(
            name, f"numbers that are stored as text, such as {labels.iloc[0]!r}: convert them"
        )
    decorated_mask = labels.map(lambda text: bool(_DECORATED_NUMBER.match(text)))
    if num_distinct > MAX_CATEGORY_VALUES and decorated_mask.all():
        decorated_number = labels[~number_mask].iloc[0]
        return _excluded_input(
            name, f"numbers with a unit or separators, such as {decorated_number!r}: convert them"
        )
    if num_distinct > MAX_CATEGORY_VALUES and number_mask.mean() > _MIN_NUMBER_SHARE:
        marker = labels[~number_mask].iloc[0]
        return _excluded_input(
            name,
            f"numbers, but text such as {marker!r} in "
            f"{pluralize(int((~number_mask).sum()), 'row')}: remove it, or list it as 'missing' in "
            "the source",
        )
    if num_distinct > _MAX_DISTINCT_SHARE * len(labels) and num_distinct > MAX_CATEGORY_VALUES:
        return _excluded_input(
            name, f"identifier: {num_distinct:,} distinct values in {len(labels):,} rows"
        )
    counts = labels.value_counts()
    chosen_values = [str(value) for value in counts.index[:MAX_CATEGORY_VALUES]]
    if num_distinct <= MAX_CATEGORY_VALUES:
        chosen_values.sort()
        reason = f"{num_distinct} values"
    else:
        chosen_share = counts.iloc[:MAX_CATEGORY_VALUES].sum() / len(labels)
        reason = (
            f"the {MAX_CATEGORY_VALUES} most frequent of {num_distinct:,} values, "
            f"{chosen_share:.0%} of the rows; the other values have no feature"
        )
    missing_argument = ", missing=True" if num_missing else ""
    if num_missing:
        reason += f"; {_format_count(num_missing, series)} missing, as a separate value"
    quoted_values = ", ".join(map(quote, chosen_values)) + ("," if len(chosen_values) == 1 else "")
    return InputGuess(
        name=name,
        kind="Category",
        code=f"Category({quote(name)}, ({quoted_values}){missing_argument})",
        reason=reason,
    )


def _format_count(count: int, series: "pd.Series[Any]") -> str:
    return f"{count:,} of {len(series):,}"


def _excluded_input(name: str, reason: str) -> InputGuess:
    return InputGuess(name=name, code="", reason=reason)
