"""Feature values as a matrix, and their comparison with the values of another table."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field

from sluice.base.settings import Record


class ColumnChange(Record):
    """The largest change of one feature column when other rows were changed or added."""

    column: str
    row: str = Field(
        description="Index label of the first changed row in the comparison that found the change."
    )
    change: float = Field(
        description="Largest change over all rows, in standard deviations of the column."
    )


class FeatureValues:
    """Features as a matrix (N, D), which can be compared with features computed from other rows."""

    def __init__(self, features: pd.DataFrame, columns: tuple[str, ...], tolerance: float) -> None:
        """Store the features.

        Args:
            features: Features of all rows (N, D).
            columns: Names of the columns to compare.
            tolerance: Largest change that is ignored, in standard deviations of the column.
        """
        self._columns = columns
        # A text is encoded as its position among the distinct texts, an unknown text as -1.
        self._distinct_texts = {
            name: _cell_keys(features[name]).unique()
            for name in columns
            if _is_text(features[name])
        }
        self._labels = _unique_labels(features.index)
        self._index = features.index
        self._values = self._encode(features)
        finite = np.where(np.isfinite(self._values), self._values, np.nan)
        with np.errstate(all="ignore"):
            scale = np.sqrt(_finite_mean((finite - _finite_mean(finite)) ** 2))
        self._scale = np.where(scale > 0, scale, 1.0)
        # With fewer rows, sums are computed in other blocks, so values may differ in the last bits.
        self._rounding_error = np.array([_rounding_error(features[name].dtype) for name in columns])
        self._tolerance = np.maximum(tolerance, self._rounding_error) * self._scale

    def compare(
        self, other: pd.DataFrame, labels: pd.Index, largest_changes: dict[str, ColumnChange]
    ) -> bool:
        """Compare the features of the rows with the given labels, and record the largest changes.

        Args:
            other: Features computed from other raw rows.
            labels: Index labels of the rows whose features should be equal.
            largest_changes: Largest change of each column that changed, by name; it is updated.

        Returns:
            Whether any row was compared: both frames must contain a row with one of the labels.
        """
        positions = self._labels.get_indexer(_unique_labels(other.index))
        rows = np.flatnonzero((positions >= 0) & other.index.isin(labels))
        if rows.size == 0:
            return False
        positions = positions[rows]
        before, after = self._values[positions], self._encode(other)[rows]
        is_same = (before == after) | (np.isnan(before) & np.isnan(after))
        if is_same.all():
            return True
        with np.errstate(invalid="ignore"):
            change = np.abs(before - after)
            # "not <=" instead of ">", so that a value that became NaN counts as changed.
            is_changed = ~is_same & ~(
                change <= self._tolerance + self._rounding_error * np.abs(before)
            )
        for column in np.flatnonzero(is_changed.any(axis=0)):
            is_row_changed = is_changed[:, column]
            changes = change[is_row_changed, column] / self._scale[column]
            largest = np.nan_to_num(changes, nan=np.inf).max()
            name = self._columns[column]
            if name not in largest_changes or largest > largest_changes[name].change:
                row = str(self._index[positions[int(is_row_changed.argmax())]])
                largest_changes[name] = ColumnChange(column=name, row=row, change=float(largest))
        return True

    def _encode(self, frame: pd.DataFrame) -> NDArray[np.float64]:
        if not self._distinct_texts:
            return frame.loc[:, list(self._columns)].to_numpy(np.float64, na_value=np.nan)
        return np.column_stack([self._encode_column(frame[name], name) for name in self._columns])

    def _encode_column(self, series: "pd.Series[Any]", name: str) -> NDArray[np.float64]:
        if name not in self._distinct_texts:
            return series.to_numpy(np.float64, na_value=np.nan)
        return self._distinct_texts[name].get_indexer(_cell_keys(series)).astype(np.float64)


def _finite_mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    is_finite = np.isfinite(values)
    total = np.where(is_finite, values, 0.0).sum(axis=0)
    return np.asarray(total / np.maximum(is_finite.sum(axis=0), 1))


def _rounding_error(dtype: Any) -> float:
    """Return the relative rounding error that is ignored: 64 epsilons of a float dtype, else 0."""
    # The dtype is looked up by its size, because np.finfo rejects pandas' nullable float dtypes.
    return 64 * float(np.finfo(f"f{dtype.itemsize}").eps) if dtype.kind == "f" else 0.0


def _is_text(series: "pd.Series[Any]") -> bool:
    return not (
        pd.api.types.is_numeric_dtype(series.dtype) or pd.api.types.is_bool_dtype(series.dtype)
    )


def _cell_keys(series: "pd.Series[Any]") -> pd.Index:
    """Return a hashable key for each cell; the key of an array is its bytes."""
    if series.dtype.kind == "O" and len(series) and isinstance(series.iloc[0], (np.ndarray, list)):
        return pd.Index([np.asarray(cell).tobytes() for cell in series])
    keys: pd.Index = pd.Index(series)
    return keys


def _unique_labels(index: pd.Index) -> pd.Index:
    """Return the labels; if some repeat, pairs of each label and the number of its occurrence."""
    if index.is_unique:
        return index
    count = pd.Series(0, index=index).groupby(level=0, dropna=False).cumcount()
    labels: pd.Index = pd.MultiIndex.from_arrays([index, count.to_numpy()])
    return labels
