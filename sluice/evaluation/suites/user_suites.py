"""Creates suites for users: from a query, from a file of rows, or from failures in production."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sluice.base.errors import ContractError, SourceError
from sluice.base.pluralize import pluralize
from sluice.evaluation.losses import SUFFIXES
from sluice.evaluation.suites.query import evaluate_query
from sluice.evaluation.suites.suite import Failures, FromFile, Origin, Query, Suite, make_suite
from sluice.evaluation.unseen_members import row_labels


def query_suite(name: str, expression: str, frame: pd.DataFrame) -> Suite:
    """Return a suite with the rows of the feature frame for which the expression is true.

    Args:
        name: Name of the suite.
        expression: Condition on the columns; see ``sluice.evaluation.suites.query``.
        frame: Feature frame.

    Raises:
        ContractError: The expression is not allowed, cannot be evaluated, is not a condition, or
            is never true.
    """
    matches = evaluate_query(expression, frame)
    labels = row_labels(frame.index)[matches.to_numpy()]
    if labels.size == 0:
        raise ContractError(
            f"The query {expression!r} of suite '{name}' is true for none of {len(frame):,} rows.",
            cause=_describe_ranges(expression, frame),
            fix="Use a less restrictive query.",
        )
    reason = f"satisfies {expression}"
    return make_suite(name, dict.fromkeys(labels.tolist(), reason), Query(expression=expression))


def file_suite(name: str, path: Path, index: pd.Index) -> Suite:
    """Return a suite with the rows of a file.

    Args:
        name: Name of the suite.
        path: CSV or Parquet file with a column 'row' and an optional column 'reason'.
        index: Row labels of the feature frame.

    Raises:
        SourceError: The file cannot be read.
        ContractError: The file has no column 'row', or contains duplicate or unknown rows.
    """
    table = _read_rows(path)
    if "row" not in table.columns or table.empty:
        raise ContractError(
            f"{path} needs a column 'row' and at least one row, got the columns "
            f"{', '.join(map(str, table.columns)) or 'none'} and {len(table)} rows.",
            fix="Write one row label per line in column 'row', and optionally a 'reason'.",
        )
    labels = [_as_text(value) for value in table["row"]]
    reasons = table["reason"].fillna("") if "reason" in table.columns else [""] * len(table)
    return _make_validated_suite(
        name, list(zip(labels, map(str, reasons), strict=True)), index, FromFile(file=path.name)
    )


def failures_suite(name: str, reasons: Mapping[str, str], index: pd.Index, *, source: str) -> Suite:
    """Return a suite with the rows that failed in production, such as in a rollout.

    Args:
        name: Name of the suite.
        reasons: Reason of each failure, by row label.
        index: Row labels of the feature frame.
        source: Event in which the rows failed, such as 'rollout of version 7'.

    Raises:
        ContractError: A row is not in the index, or there are no rows.
    """
    return _make_validated_suite(name, list(reasons.items()), index, Failures(source=source))


def find_positions(labels: Sequence[str], index: pd.Index) -> NDArray[np.int64]:
    """Return the position of each label in the index, or -1; a date may omit the time of day."""
    texts = list(labels)
    if isinstance(index, pd.DatetimeIndex):
        texts = [_to_iso(text) for text in texts]
    positions: NDArray[np.int64] = pd.Index(row_labels(index)).get_indexer(pd.Index(texts))
    return positions


def _describe_ranges(expression: str, frame: pd.DataFrame) -> str:
    """Return the ranges of the numeric columns that an expression contains, as text."""
    names = set(re.findall(r"\w+", expression))
    ranges = [
        f"{name} ranges from {frame[name].min():.4g} to {frame[name].max():.4g}"
        for name in map(str, frame.columns)
        if name in names and pd.api.types.is_numeric_dtype(frame[name])
    ]
    return f"{', '.join(ranges)}." if ranges else ""


def _make_validated_suite(
    name: str, rows: Sequence[tuple[str, str]], index: pd.Index, origin: Origin
) -> Suite:
    """Return a suite of rows in the order of the index; raise an error for unknown rows.

    Args:
        name: Name of the suite.
        rows: Pairs of (row label, reason).
        index: Row labels of the feature frame.
        origin: How the rows were selected.
    """
    positions = find_positions([label for label, _ in rows], index)
    unknown_labels = [label for (label, _), i in zip(rows, positions, strict=True) if i < 0]
    if unknown_labels:
        raise ContractError(
            f"The rows of suite '{name}' must be in the feature frame; {len(unknown_labels)} of "
            f"{len(rows)} are not: {', '.join(unknown_labels[:5])}"
            f"{', ...' if len(unknown_labels) > 5 else ''}.",
            cause=f"The labels of the frame range from {row_labels(index[:1])[0]} to "
            f"{row_labels(index[-1:])[0]}. The frame may lack the first rows of the source, which "
            "have no past values for features, and the last rows, which have no target.",
            fix="Correct or remove these rows.",
        )
    is_repeated = pd.Series(positions).duplicated()
    repeated_labels = [rows[i][0] for i in np.flatnonzero(is_repeated).tolist()]
    if repeated_labels:
        raise ContractError(
            f"Suite '{name}' must contain each row once, got "
            f"{pluralize(len(repeated_labels), 'duplicate')}, first {repeated_labels[0]}.",
            fix="Remove the duplicates.",
        )
    order = np.argsort(positions, kind="stable")
    labels = row_labels(index[positions[order]])
    reasons = {str(label): rows[i][1] for label, i in zip(labels, order.tolist(), strict=True)}
    return make_suite(name, reasons, origin)


def _to_iso(text: str) -> str:
    try:
        return pd.Timestamp(text).isoformat()
    except ValueError:  # not a date; the caller reports the label as unknown
        return text


def _as_text(value: object) -> str:
    return value.isoformat() if isinstance(value, pd.Timestamp) else str(value)


def _read_rows(path: Path) -> pd.DataFrame:
    if path.suffix not in SUFFIXES:
        raise SourceError(
            f"A file of rows must end in {' or '.join(SUFFIXES)}, got {path}.",
            fix="Rename or convert the file.",
        )
    try:
        # All fields are read as text, because a label such as 0071 is not the number 71.
        return pd.read_csv(path, dtype=str) if path.suffix == ".csv" else pd.read_parquet(path)
    except (OSError, ValueError) as error:
        # The errors of pandas and pyarrow for unreadable tables are subclasses of these two.
        raise SourceError(
            f"The rows in {path} cannot be read: {error}",
            fix="Use a CSV or Parquet file with a column 'row'.",
        ) from error
