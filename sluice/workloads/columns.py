"""Columns of a table as inputs of a network: numbers, categories, texts, dates and earlier values.

Each class computes its features from one raw column. The features of a row depend only on this row,
on earlier rows and on the declared arguments, never on statistics of the table. So the features are
the same in training and in serving, and no test row affects them.

Shape legend: N = rows, W = features of a text.
"""

import itertools
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sluice.base.errors import ContractError
from sluice.data.schema import Column

Features = Mapping[str, NDArray[np.float64]]
"""Feature columns (N,) by name."""

CalendarPart = Literal["hour", "weekday", "monthday", "yearday"]

_CYCLE_LENGTHS: Mapping[CalendarPart, float] = {
    "hour": 24.0,
    "weekday": 7.0,
    "monthday": 31.0,
    "yearday": 366.0,
}
"""Length of the cycle of each part of a date, in the unit of the part."""

_WORD = re.compile(r"\w+")


class InputColumn(ABC):
    """Raw column that is an input of the network."""

    name: str

    @property
    @abstractmethod
    def raw_column(self) -> Column:
        """Column that the raw rows must have."""

    @property
    @abstractmethod
    def features(self) -> tuple[Column, ...]:
        """Feature columns that are computed from the raw column."""

    @abstractmethod
    def compute(self, raw: pd.DataFrame) -> Features:
        """Return the features of all rows."""


@dataclass(frozen=True, slots=True)
class Number(InputColumn):
    """Number, passed on unchanged.

    Args:
        name: Name of the raw column.
        fill: Value for missing numbers. A second feature, ``NAME_missing``, is then 1 for the rows
            without a number. If ``fill`` is None, a missing number is an error.
    """

    name: str
    fill: float | None = None

    @property
    def raw_column(self) -> Column:
        """Column of floats, which may have missing values if ``fill`` is set."""
        return Column(name=self.name, nullable=self.fill is not None)

    @property
    def features(self) -> tuple[Column, ...]:
        """The number and, with ``fill``, the indicator of missing numbers."""
        number = Column(name=self.name)
        if self.fill is None:
            return (number,)
        return (number, Column(name=f"{self.name}_missing", constant=True))

    def compute(self, raw: pd.DataFrame) -> Features:
        """Return the numbers, with missing values filled, and the indicator."""
        values = _column_or_index(raw, self.name).to_numpy(np.float64, na_value=np.nan)
        if self.fill is None:
            return {self.name: values}
        is_missing = np.isnan(values)
        return {
            self.name: np.where(is_missing, self.fill, values),
            f"{self.name}_missing": is_missing.astype(np.float64),
        }


@dataclass(frozen=True, slots=True)
class Category(InputColumn):
    """Category, as one feature per declared value: 1 for rows with this value, 0 for other rows.

    For a row with an undeclared value, all features are 0.

    Args:
        name: Name of the raw column.
        values: Declared values, as texts; see ``as_labels``.
        missing: Whether values may be missing. The feature ``NAME=missing`` is then 1 for rows
            without a value.
    """

    name: str
    values: tuple[str, ...]
    missing: bool = False

    @property
    def raw_column(self) -> Column:
        """Column of texts."""
        return Column(name=self.name, kind="string", nullable=self.missing)

    @property
    def features(self) -> tuple[Column, ...]:
        """One indicator per value; a rare value may be absent from a small split."""
        missing = ("missing",) if self.missing else ()
        names = [f"{self.name}={value}" for value in (*self.values, *missing)]
        return tuple(Column(name=name, constant=True) for name in names)

    def compute(self, raw: pd.DataFrame) -> Features:
        """Return the indicators."""
        labels = as_labels(_column_or_index(raw, self.name))
        columns = {
            f"{self.name}={value}": (labels == value).to_numpy().astype(np.float64)
            for value in self.values
        }
        if self.missing:
            columns[f"{self.name}=missing"] = labels.isna().to_numpy().astype(np.float64)
        return columns


@dataclass(frozen=True, slots=True)
class Text(InputColumn):
    """Text, as counts of its words, hashed to a fixed number of features.

    Words are lower-cased runs of letters, digits and underscores. The hash of a word decides which
    feature it counts towards and with which sign. On average, different words that count towards
    one feature therefore cancel. The counts of a text are divided by their Euclidean norm. A
    missing text has no words.

    Args:
        name: Name of the raw column.
        width: Number of features.
        pairs: Whether to count pairs of neighbouring words as well, such as "not good".

    Source:
        Weinberger et al. (2009), "Feature Hashing for Large Scale Multitask Learning", ICML.
    """

    name: str
    width: int = 64
    pairs: bool = False

    @property
    def raw_column(self) -> Column:
        """Column of texts, which may have missing values."""
        return Column(name=self.name, kind="string", nullable=True)

    @property
    def features(self) -> tuple[Column, ...]:
        """One column per feature; a rare word may be absent from a small split."""
        return tuple(Column(name=name, constant=True) for name in self._names)

    @property
    def _names(self) -> tuple[str, ...]:
        digits = len(str(self.width - 1))
        return tuple(f"{self.name}_word{number:0{digits}d}" for number in range(self.width))

    def compute(self, raw: pd.DataFrame) -> Features:
        """Return the hashed counts of words."""
        counts_NW = np.zeros((len(raw), self.width))
        code_by_word: dict[str, int] = {}
        for row, text in enumerate(_column_or_index(raw, self.name)):
            for word in self._words(text):
                code = code_by_word.get(word)
                if code is None:
                    code = code_by_word[word] = zlib.crc32(word.encode())
                counts_NW[row, (code >> 1) % self.width] += 1 - 2 * (code & 1)
        norm_N1 = np.linalg.norm(counts_NW, axis=1, keepdims=True)
        counts_NW /= np.where(norm_N1 > 0, norm_N1, 1.0)
        return dict(zip(self._names, counts_NW.T, strict=True))

    def _words(self, text: object) -> list[str]:
        if not isinstance(text, str):
            return []
        words = _WORD.findall(text.lower())
        pairs = itertools.pairwise(words) if self.pairs else ()
        return [*words, *(f"{first} {second}" for first, second in pairs)]


@dataclass(frozen=True, slots=True)
class Calendar(InputColumn):
    """Date, as sine and cosine of its hour, weekday, day of the month or day of the year.

    Args:
        name: Name of the raw column, or of the index.
        parts: Parts of the date that are computed.
    """

    name: str
    parts: tuple[CalendarPart, ...]

    @property
    def raw_column(self) -> Column:
        """Column of dates."""
        return Column(name=self.name, kind="datetime")

    @property
    def features(self) -> tuple[Column, ...]:
        """Sine and cosine of each part."""
        return tuple(
            # The feature may be constant in a short split, such as the weekday within one day.
            Column(name=f"{self.name}_{part}_{wave}", constant=True)
            for part in self.parts
            for wave in ("sin", "cos")
        )

    def compute(self, raw: pd.DataFrame) -> Features:
        """Return sine and cosine of each part."""
        date_N = _column_or_index(raw, self.name).dt
        values: Mapping[CalendarPart, Any] = {
            "hour": date_N.hour + date_N.minute / 60,
            "weekday": date_N.day_of_week,
            "monthday": date_N.day - 1,
            "yearday": date_N.day_of_year - 1,
        }
        columns: dict[str, NDArray[np.float64]] = {}
        for part in self.parts:
            angle = 2 * np.pi * values[part].to_numpy(np.float64) / _CYCLE_LENGTHS[part]
            columns |= {f"{self.name}_{part}_sin": np.sin(angle)}
            columns |= {f"{self.name}_{part}_cos": np.cos(angle)}
        return columns


@dataclass(frozen=True, slots=True)
class Lag(InputColumn):
    """Value of a numeric column in an earlier row, for rows in time order.

    The first rows have no value.

    Args:
        name: Name of the raw column, which may be the target.
        rows: Distance to the earlier row; 1 is the previous row [rows].
    """

    name: str
    rows: int = field(default=1)

    @property
    def raw_column(self) -> Column:
        """Column of floats."""
        return Column(name=self.name)

    @property
    def features(self) -> tuple[Column, ...]:
        """The value of the earlier row."""
        return (Column(name=f"{self.name}_lag{self.rows}"),)

    def compute(self, raw: pd.DataFrame) -> Features:
        """Return the values of earlier rows; NaN for the first rows.

        Raises:
            ContractError: ``rows`` is less than 1, so that the row is not an earlier row.
        """
        if self.rows < 1:
            raise ContractError(
                f"Lag('{self.name}') must refer to an earlier row, got rows={self.rows}.",
                fix="Set rows to 1 or more.",
            )
        values = _column_or_index(raw, self.name).shift(self.rows)
        return {f"{self.name}_lag{self.rows}": values.to_numpy(np.float64, na_value=np.nan)}


def as_labels(series: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return the values of a column as texts; missing values stay missing.

    >>> as_labels(pd.Series([1.0, None, 2.5])).tolist()
    ['1', nan, '2.5']
    """
    if series.dtype.kind == "O" and not isinstance(series.dtype, pd.StringDtype):
        values = [
            None if missing else as_label(each)
            for each, missing in zip(series, series.isna(), strict=True)
        ]
        return pd.Series(values, index=series.index, name=series.name, dtype="str")
    codes, distinct_values = pd.factorize(series)  # the code of a missing value is -1
    texts = pd.array([as_label(value) for value in distinct_values], dtype="str")
    labels = texts.take(codes, allow_fill=True)
    return pd.Series(labels, index=series.index, name=series.name)


def as_label(value: object) -> str:
    """Return a value as a text.

    Floats are formatted with up to 15 significant digits and without a trailing ".0", because a
    column of integers with missing values is read as floats. Negative zero is "0".
    """
    return f"{value + 0.0:.15g}" if isinstance(value, float | np.floating) else str(value)


def _column_or_index(raw: pd.DataFrame, name: str) -> "pd.Series[Any]":
    """Return a column, or the index of that name."""
    if name in raw.columns:
        return raw[name]
    return pd.Series(raw.index, index=raw.index, name=name)
