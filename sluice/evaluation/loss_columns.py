"""The columns of a loss table (seed, fold, row, loss): read strictly, refused by line."""

import numpy as np
import pandas as pd

from sluice.base.errors import ContractError

COLUMNS = ("seed", "fold", "row", "loss")
_BEYOND = 2**53

CLUSTER = "cluster"
"""A fifth column, when rows belong together."""


def require_columns(frame: pd.DataFrame) -> None:
    """Refuse a table without lines or without one of the four columns."""
    missing = [name for name in COLUMNS if name not in frame.columns]
    if missing or frame.empty:
        raise ContractError(
            f"A loss table needs the columns {', '.join(COLUMNS)} and at least one line, got "
            f"{', '.join(map(str, frame.columns)) or 'none'} and {len(frame)} lines.",
            fix="Add the missing columns; leave 'seed' empty for a rule without seeds.",
        )


def whole_numbers(frame: pd.DataFrame, name: str) -> "pd.Series[int]":
    """Return a column of whole numbers, or refuse the first value that is none."""
    values = pd.to_numeric(frame[name], errors="coerce").astype("Float64")
    # Numbers of text pass through floats, which do not tell larger ones apart.
    bad = (values.isna() | (values % 1 != 0) | (values.abs() >= _BEYOND)).fillna(True)
    if bad.any():
        at = int(np.flatnonzero(bad.to_numpy(bool))[0])
        raise ContractError(
            f"Column '{name}' must hold whole numbers below 2^53, got {frame[name].iloc[at]!r} in "
            f"line {at} ({int(bad.sum())} lines in all).",
            fix=f"Fill '{name}' in every line"
            + (" or, for a rule without seeds, in none." if name == "seed" else "."),
        )
    return values.astype("int64")


def loss_values(frame: pd.DataFrame) -> "pd.Series[float]":
    """Return the losses; NaN and infinity pass, because a failure is evidence; text does not."""
    given = frame["loss"]
    values = pd.to_numeric(given, errors="coerce").astype("float64")
    bad = values.isna() & given.notna() & (given.astype("str").str.lower() != "nan")
    if bad.any():
        at = int(np.flatnonzero(bad.to_numpy(bool))[0])
        raise ContractError(
            f"Column 'loss' must hold numbers, got {given.iloc[at]!r} in line {at} "
            f"({int(bad.sum())} lines in all).",
            fix="Write the loss as a number, or NaN where the model failed.",
        )
    return values


def row_labels(row: "pd.Series") -> "pd.Series[str]":
    """Return the labels as text, dates in ISO form, or refuse a row without one."""
    if row.isna().any():
        at = int(np.flatnonzero(row.isna().to_numpy(bool))[0])
        raise ContractError(
            f"Column 'row' must name every row, got nothing in line {at}.",
            fix="Write the row's date or number.",
        )
    if pd.api.types.is_datetime64_any_dtype(row):
        return row.map(lambda time: time.isoformat())
    return row.astype("str")


def cluster_of_rows(frame: pd.DataFrame, long: pd.DataFrame) -> "pd.Series[str] | None":
    """Return the cluster by (fold, row); None without the column.

    Raises:
        ContractError: A line has none, or a row has another one in another seed.
    """
    if CLUSTER not in frame.columns:
        return None
    given = frame[CLUSTER]
    if given.isna().any():
        at = int(np.flatnonzero(given.isna().to_numpy(bool))[0])
        raise ContractError(
            f"Column 'cluster' must be filled in every line, got nothing in line {at}.",
            fix="Name the cluster of each row, or leave the column out.",
        )
    named = long[["fold", "row"]].assign(cluster=row_labels(given)).drop_duplicates()
    twice = named.duplicated(["fold", "row"])
    if twice.any():
        first = named[twice].iloc[0]
        raise ContractError(
            f"A row must be in one cluster, whatever the seed; fold {first['fold']}, row "
            f"{first['row']} is in several.",
            fix="Name the cluster by the row alone.",
        )
    return named.set_index(["fold", "row"])["cluster"]


def in_time_order(keys: pd.DataFrame) -> pd.DataFrame:
    """Return the (fold, row) pairs in time order within each fold.

    Args:
        keys: Columns fold and row, each pair once, in the order of the lines.

    Raises:
        ContractError: The labels are neither numbers nor ISO dates, and the lines are not in the
            order that the labels have as text.
    """
    time = _time(keys["row"])
    if time is None:
        _require_text_order(keys)
        time = keys["row"]
    return keys.assign(time=time).sort_values(["fold", "time", "row"])


def _time(label: "pd.Series[str]") -> "pd.Series | None":
    """Return what sorts the labels in time, numbers or dates; None when they are neither."""
    if label.str.fullmatch(r"[+-]?\d{1,18}").all():
        return label.astype("int64")
    if label.str.fullmatch(r"[+-]?\d{1,15}\.\d+").all():
        return label.astype("float64")
    try:
        return pd.to_datetime(label, format="ISO8601", utc=True)
    except ValueError:
        return None


def _require_text_order(keys: pd.DataFrame) -> None:
    """Refuse labels whose text does not sort as their lines do: 01.02.2024 or bar10.

    Sorted as text they lose their order in time, and dependent rows then look independent.
    """
    before = keys.groupby("fold", sort=False)["row"].shift()
    wrong = np.flatnonzero((before.notna() & (keys["row"] < before)).to_numpy(bool))
    if wrong.size:
        at = int(wrong[0])
        raise ContractError(
            "Rows need an order in time: labels that are numbers or ISO dates, or lines sorted by "
            f"label; got {keys['row'].iloc[at]!r} after {before.iloc[at]!r} in fold "
            f"{keys['fold'].iloc[at]} ({wrong.size} such places).",
            cause="Dates or numbers written in another way do not sort as time does.",
            fix="Write dates as 2024-12-31 and numbers as plain numbers; sort the lines by label "
            "only when the rows are independent of each other.",
        )
