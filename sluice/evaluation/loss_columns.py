"""Parses and checks the columns of a loss table: seed, fold, row, loss and optionally cluster."""

import numpy as np
import pandas as pd

from sluice.base.errors import ContractError
from sluice.base.pluralize import pluralize

COLUMNS = ("seed", "fold", "row", "loss")
"""Required columns of a loss table."""

_INTEGER_LIMIT = 2**53
"""Exclusive limit of the absolute value of seeds and folds. float64 represents all smaller integers
exactly."""

CLUSTER = "cluster"
"""Name of the optional fifth column, for clustered rows."""


def require_columns(frame: pd.DataFrame) -> None:
    """Raise an error for a table without rows or without one of the four columns."""
    missing_columns = [name for name in COLUMNS if name not in frame.columns]
    if missing_columns or frame.empty:
        raise ContractError(
            f"A loss table needs the columns {', '.join(COLUMNS)} and at least one row, got the "
            f"columns {', '.join(map(str, frame.columns)) or 'none'} and {len(frame)} rows.",
            fix="Add the missing columns or rows; leave 'seed' empty for a rule without seeds.",
        )


def integer_column(frame: pd.DataFrame, name: str) -> "pd.Series[int]":
    """Return a column of integers, or raise an error for the first other value."""
    values = pd.to_numeric(frame[name], errors="coerce").astype("Float64")
    # Text is parsed as floats, which do not represent all larger integers exactly.
    is_invalid = (values.isna() | (values % 1 != 0) | (values.abs() >= _INTEGER_LIMIT)).fillna(True)
    if is_invalid.any():
        first_row = int(np.flatnonzero(is_invalid.to_numpy(bool))[0])
        raise ContractError(
            f"Column '{name}' must contain integers below 2^53, got "
            f"{frame[name].iloc[first_row]!r} in row {first_row} "
            f"({pluralize(int(is_invalid.sum()), 'invalid value')}).",
            fix=f"Fill '{name}' in every row"
            + (" or, for a rule without seeds, in none." if name == "seed" else "."),
        )
    return values.astype("int64")


def loss_values(frame: pd.DataFrame) -> "pd.Series[float]":
    """Return the losses; NaN and infinity are allowed, because a diverged seed is evidence."""
    column = frame["loss"]
    values = pd.to_numeric(column, errors="coerce").astype("float64")
    is_invalid = values.isna() & column.notna() & (column.astype("str").str.lower() != "nan")
    if is_invalid.any():
        first_row = int(np.flatnonzero(is_invalid.to_numpy(bool))[0])
        raise ContractError(
            f"Column 'loss' must contain numbers, got {column.iloc[first_row]!r} in row "
            f"{first_row} ({pluralize(int(is_invalid.sum()), 'invalid value')}).",
            fix="Write the loss as a number, or NaN where the model failed.",
        )
    return values


def parse_labels(column: "pd.Series") -> "pd.Series[str]":
    """Return the labels as text, with dates in ISO format; raise an error for missing labels."""
    if column.isna().any():
        first_row = int(np.flatnonzero(column.isna().to_numpy(bool))[0])
        raise ContractError(
            f"Column 'row' must contain a label in every row, but row {first_row} has none.",
            fix="Write the date or number of the row.",
        )
    if pd.api.types.is_datetime64_any_dtype(column):
        return column.map(lambda time: time.isoformat())
    return column.astype("str")


def cluster_of_rows(frame: pd.DataFrame, parsed: pd.DataFrame) -> "pd.Series[str] | None":
    """Return the cluster of each (fold, row); None if the table has no column ``cluster``.

    Args:
        frame: Table before parsing.
        parsed: Parsed columns ``fold`` and ``row`` of the same rows.

    Raises:
        ContractError: A cluster is missing, or a row has different clusters for different seeds.
    """
    if CLUSTER not in frame.columns:
        return None
    column = frame[CLUSTER]
    if column.isna().any():
        first_row = int(np.flatnonzero(column.isna().to_numpy(bool))[0])
        raise ContractError(
            f"Column 'cluster' must be filled in every row, but row {first_row} is empty.",
            fix="Fill in the cluster of each row, or remove the column.",
        )
    clusters = parsed[["fold", "row"]].assign(cluster=parse_labels(column)).drop_duplicates()
    is_repeated = clusters.duplicated(["fold", "row"])
    if is_repeated.any():
        repeated = clusters[is_repeated].iloc[0]
        raise ContractError(
            f"A row must be in the same cluster for all seeds; fold {repeated['fold']}, row "
            f"{repeated['row']} is in several clusters.",
            fix="Assign the cluster by the row only.",
        )
    return clusters.set_index(["fold", "row"])["cluster"]


def sort_by_time(fold_rows: pd.DataFrame) -> pd.DataFrame:
    """Return the (fold, row) pairs in time order within each fold.

    Args:
        fold_rows: Columns fold and row, each pair once, in the order of the table.

    Raises:
        ContractError: The labels are neither numbers nor ISO dates, and the table is not sorted by
            the labels as text.
    """
    time = _parse_times(fold_rows["row"])
    if time is None:
        _require_text_order(fold_rows)
        time = fold_rows["row"]
    return fold_rows.assign(time=time).sort_values(["fold", "time", "row"])


def _parse_times(labels: "pd.Series[str]") -> "pd.Series | None":
    """Return the labels as numbers or dates, for sorting; None if they are neither."""
    if labels.str.fullmatch(r"[+-]?\d{1,18}").all():
        return labels.astype("int64")
    if labels.str.fullmatch(r"[+-]?\d{1,15}\.\d+").all():
        return labels.astype("float64")
    try:
        return pd.to_datetime(labels, format="ISO8601", utc=True)
    except ValueError:
        return None


def _require_text_order(fold_rows: pd.DataFrame) -> None:
    """Raise an error unless labels that are neither numbers nor ISO dates are sorted as text.

    Labels such as 01.02.2024 or bar10 sort differently as text than in time. Sorting such labels
    as text could destroy the time order, and hide the serial dependence. It is therefore allowed
    only if it does not change the order of the table.
    """
    previous_label = fold_rows.groupby("fold", sort=False)["row"].shift()
    is_unsorted = previous_label.notna() & (fold_rows["row"] < previous_label)
    unsorted_rows = np.flatnonzero(is_unsorted.to_numpy(bool))
    if unsorted_rows.size:
        first_row = int(unsorted_rows[0])
        raise ContractError(
            "The time order of the rows is unknown: labels must be numbers or ISO dates, or the "
            f"table must be sorted by label; got {fold_rows['row'].iloc[first_row]!r} after "
            f"{previous_label.iloc[first_row]!r} in fold {fold_rows['fold'].iloc[first_row]} "
            f"({pluralize(unsorted_rows.size, 'such row')}).",
            cause="Dates or numbers in other formats do not sort in time order.",
            fix="Write dates as 2024-12-31 and numbers as plain numbers. Sort the table by label "
            "only if the rows are independent.",
        )
