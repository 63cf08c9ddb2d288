"""Partitions of the raw rows, whose features are computed one partition at a time."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field

from sluice.base.errors import ContractError
from sluice.base.settings import Settings

_INTEGER_KINDS = "iu"


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition of the raw rows."""

    name: str
    """Period or key, such as '2017-03' or 'AAPL'."""
    rows: NDArray[np.int64]
    """Positions of the raw rows from which the features of the partition are computed, including
    its context."""


class PeriodPartitions(Settings):
    """Partitions by time: the rows of each period, with earlier and later rows as their context.

    Use this class if the features of a row depend on a limited number of earlier rows. Rows with
    equal index labels, such as those of several assets on one day, count as one row. The number of
    later rows is ``horizon_rows`` of the workload.
    """

    period: Literal["D", "W", "M", "Q", "Y"] | Annotated[int, Field(ge=1)] = Field(
        description="Day, week, month, quarter or year, for dates; or the length of a period, for "
        "integer index labels, at least 1."
    )
    look_back_rows: int = Field(
        ge=0,
        description="Maximum number of earlier rows on which the features of a row depend [rows].",
    )

    def split(
        self, raw: pd.DataFrame, *, horizon_rows: int, is_widened: bool = False
    ) -> list[Partition]:
        """Return the partitions, oldest first.

        Args:
            raw: Raw rows.
            horizon_rows: Number of later rows on which a target depends.
            is_widened: Whether to return a larger context, to find out whether the values change.

        Raises:
            ContractError: The index labels are neither dates nor integers, or are not sorted.
        """
        if not raw.index.is_monotonic_increasing:
            raise ContractError(
                "Raw rows must be sorted by their index labels to be divided into periods, but are "
                "not.",
                fix="Sort the rows in load_rows, or use KeyPartitions.",
            )
        labels = raw.index.unique()
        names = self._period_names(labels)
        num_earlier, num_later = self.look_back_rows, horizon_rows
        if is_widened:
            num_earlier, num_later = 2 * num_earlier + 10, 2 * num_later + 10
        first_rows = np.append(raw.index.searchsorted(labels), len(raw))
        starts = np.flatnonzero(np.append(True, names[1:] != names[:-1]))
        stops = np.append(starts[1:], len(labels))
        return [
            Partition(
                name=str(names[start]),
                rows=np.arange(
                    first_rows[max(start - num_earlier, 0)],
                    first_rows[min(stop + num_later, len(labels))],
                ),
            )
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
        ]

    def own_rows(self, name: str, features: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of a feature frame that belong to a partition, without its context."""
        rows: pd.DataFrame = features.loc[self._period_names(features.index) == name]
        return rows

    def _period_names(self, labels: pd.Index) -> NDArray[np.object_]:
        if isinstance(labels, pd.DatetimeIndex) and isinstance(self.period, str):
            periods = labels.tz_localize(None).to_period(self.period)
            return np.asarray(periods.astype(str), dtype=object)
        if labels.dtype.kind in _INTEGER_KINDS and isinstance(self.period, int):
            period_starts = labels.to_numpy() // self.period * self.period
            return np.asarray([str(start) for start in period_starts], dtype=object)
        kind = "letter for dates" if isinstance(self.period, str) else "number for integers"
        raise ContractError(
            f"A period of {self.period!r} is a {kind}, but the index labels of the rows are "
            f"{labels.dtype}.",
            fix="Use 'D', 'W', 'M', 'Q' or 'Y' for dates, and a number for integer labels. For "
            "other index labels, use KeyPartitions.",
        )


class KeyPartitions(Settings):
    """Partitions by key: all rows with the same value in one column, such as an asset or a user.

    Use this class if the features of a row depend only on rows with the same key. The feature frame
    must contain the column, and the rows of one key must have different index labels.
    """

    column: str = Field(min_length=1, description="Column of raw rows and of the feature frame.")

    def split(
        self,
        raw: pd.DataFrame,
        *,
        horizon_rows: int,  # noqa: ARG002 - same signature as that of PeriodPartitions
        is_widened: bool = False,
    ) -> list[Partition]:
        """Return the partitions in the order of their names.

        Args:
            raw: Raw rows.
            horizon_rows: Not used; a partition has all rows of its key.
            is_widened: Whether to add the rows of another key to each partition but the first, to
                find out if the values change.

        Raises:
            ContractError: The column does not exist or has missing values, or two rows of one key
                have the same index label.
        """
        if self.column not in raw.columns or raw[self.column].isna().any():
            problem = "has missing values" if self.column in raw.columns else "is missing"
            raise ContractError(
                f"The column '{self.column}' divides the raw rows into partitions, but {problem}.",
                fix="Correct 'column' of feature_partitions, or drop rows without a value in "
                "load_rows.",
            )
        names = raw[self.column].astype(str).to_numpy(object)
        codes, keys = pd.factorize(names, sort=True)
        order = np.argsort(codes, kind="stable")
        groups = np.split(order, np.cumsum(np.bincount(codes))[:-1])
        for key, rows in zip(keys, groups, strict=True):
            labels = raw.index[rows]
            if not labels.is_unique:
                raise ContractError(
                    f"The rows of a key must have different index labels, but '{key}' has "
                    f"{labels[labels.duplicated()][0]} twice.",
                    cause="Rows of several keys can only be put into order by key and label.",
                    fix="Choose another column, or remove the duplicates in load_rows.",
                )
        if is_widened:
            groups = [
                np.sort(np.concatenate([rows, groups[number - 1]])) if number else rows
                for number, rows in enumerate(groups)
            ]
        return [Partition(str(key), rows) for key, rows in zip(keys, groups, strict=True)]

    def own_rows(self, name: str, features: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of a feature frame that belong to a partition.

        Raises:
            ContractError: The feature frame lacks the column.
        """
        if self.column not in features.columns:
            raise ContractError(
                f"The feature frame must contain the column '{self.column}', which divides it into "
                "partitions.",
                fix="Keep the column in compute_features; it need not be a feature.",
            )
        rows: pd.DataFrame = features.loc[(features[self.column].astype(str) == name).to_numpy()]
        return rows


FeaturePartitions = PeriodPartitions | KeyPartitions
"""Declaration of a workload that its features can be computed one partition at a time."""


def join_partitions(
    raw: pd.DataFrame, parts: Iterable[tuple[Partition, pd.DataFrame]]
) -> pd.DataFrame:
    """Return the rows of all partitions as one feature frame, in the order of the raw rows.

    Args:
        raw: Raw rows.
        parts: Partitions, each with the feature rows that belong to it.

    Raises:
        ContractError: There are no feature rows, a feature row has the index label of no raw row,
            or the columns or dtypes of two partitions differ.
    """
    parts_with_rows = [(partition, part) for partition, part in parts if len(part)]
    if not parts_with_rows:
        raise ContractError(
            "The feature frame has no rows.", fix="Correct compute_features, or provide more rows."
        )
    first_partition, first_part = parts_with_rows[0]
    positions = []
    for partition, part in parts_with_rows:
        _require_same_columns(first_partition, first_part, partition, part)
        positions.append(_raw_positions(raw, partition, part))
    frame = pd.concat([part for _, part in parts_with_rows])
    order = np.argsort(np.concatenate(positions), kind="stable")
    return frame if (np.diff(order) > 0).all() else frame.iloc[order]


def _raw_positions(
    raw: pd.DataFrame, partition: Partition, part: pd.DataFrame
) -> NDArray[np.int64]:
    """Return for each feature row the position of the first raw row with its index label."""
    labels = raw.index[partition.rows]
    label_positions = labels.unique().get_indexer(part.index)
    if (label_positions < 0).any():
        raise ContractError(
            "The rows of the feature frame must keep their index labels from the raw rows, but "
            f"no raw row of partition '{partition.name}' has the label "
            f"{part.index[label_positions < 0][0]}.",
            fix="Do not change the index in compute_features.",
        )
    first_positions = np.flatnonzero(~labels.duplicated())
    return partition.rows[first_positions[label_positions]]


def _require_same_columns(
    first_partition: Partition, first_part: pd.DataFrame, partition: Partition, part: pd.DataFrame
) -> None:
    first_dtypes, dtypes = (
        {str(name): str(dtype) for name, dtype in frame.dtypes.items()}
        for frame in (first_part, part)
    )
    if list(first_dtypes.items()) == list(dtypes.items()):
        return
    differing_column = next(
        (name for name in {**first_dtypes, **dtypes} if first_dtypes.get(name) != dtypes.get(name)),
        None,
    )
    if differing_column is None:
        raise ContractError(
            f"All partitions must have the same order of columns, but it is "
            f"{', '.join(first_dtypes)} in "
            f"partition '{first_partition.name}' and {', '.join(dtypes)} in '{partition.name}'.",
            fix="Return the columns in a fixed order from compute_features.",
        )
    raise ContractError(
        f"All partitions must have the same columns and dtypes, but '{differing_column}' is "
        f"{first_dtypes.get(differing_column, 'missing')} in partition '{first_partition.name}' "
        f"and {dtypes.get(differing_column, 'missing')} in '{partition.name}'.",
        cause="The dtype depends on the values of a partition, such as missing values among "
        "integers, or categories that pandas infers.",
        fix="Set the dtype of the column in compute_features.",
    )
