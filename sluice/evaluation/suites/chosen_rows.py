"""Suites that people make: by a query on the features, by a file of rows, from failures."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sluice.base.errors import ContractError, SourceError
from sluice.evaluation.losses import SUFFIXES
from sluice.evaluation.production import row_labels
from sluice.evaluation.suites.query import matching_rows
from sluice.evaluation.suites.suite import Failures, FromFile, Origin, Query, Suite, suite_of


def query_suite(name: str, expression: str, frame: pd.DataFrame) -> Suite:
    """Return the rows of the feature frame for which the expression is true.

    Args:
        name: Of the suite.
        expression: A condition on the columns; see ``sluice.evaluation.suites.query``.
        frame: Feature frame.

    Raises:
        ContractError: The expression is outside the query language, cannot be computed, is no
            condition, or is never true.
    """
    found = matching_rows(expression, frame)
    labels = row_labels(frame.index)[found.to_numpy()]
    if labels.size == 0:
        raise ContractError(
            f"Suite '{name}' needs a query that some row meets, got {expression!r}, which is true "
            f"for none of {len(frame):,}.",
            cause=_ranges(expression, frame),
            fix="Widen the query.",
        )
    reason = f"meets {expression}"
    return suite_of(name, dict.fromkeys(labels.tolist(), reason), Query(expression=expression))


def file_suite(name: str, path: Path, index: pd.Index) -> Suite:
    """Return the rows that a file names.

    Args:
        name: Of the suite.
        path: CSV or Parquet with a column 'row' and, if wanted, 'reason'.
        index: Row labels of the feature frame.

    Raises:
        SourceError: The file cannot be read.
        ContractError: It has no column 'row', names a row twice, or one the index does not hold.
    """
    table = _read(path)
    if "row" not in table.columns or table.empty:
        raise ContractError(
            f"{path} needs a column 'row' and at least one line, got the columns "
            f"{', '.join(map(str, table.columns)) or 'none'} and {len(table)} lines.",
            fix="Write one row label a line under 'row'; 'reason' may say why.",
        )
    labels = [_as_text(value) for value in table["row"]]
    given = table["reason"].fillna("") if "reason" in table.columns else [""] * len(table)
    return _suite_of_known(
        name, list(zip(labels, map(str, given), strict=True)), index, FromFile(file=path.name)
    )


def failures_suite(name: str, reasons: Mapping[str, str], index: pd.Index, *, source: str) -> Suite:
    """Return the rows that failed in use, as in a rollout.

    Args:
        name: Of the suite.
        reasons: How each failed, by row label.
        index: Row labels of the feature frame.
        source: Where they failed, such as 'rollout of version 7'.

    Raises:
        ContractError: A row is not in the index, or there is none.
    """
    return _suite_of_known(name, list(reasons.items()), index, Failures(source=source))


def find_places(labels: Sequence[str], index: pd.Index) -> NDArray[np.int64]:
    """Return where each label stands in the index, -1 for none; a date needs no time of day."""
    texts = list(labels)
    if isinstance(index, pd.DatetimeIndex):
        texts = [_iso(text) for text in texts]
    place: NDArray[np.int64] = pd.Index(row_labels(index)).get_indexer(pd.Index(texts))
    return place


def _ranges(expression: str, frame: pd.DataFrame) -> str:
    """Say what values the columns of an expression have."""
    words = set(re.findall(r"\w+", expression))
    told = [
        f"{name} runs from {frame[name].min():.4g} to {frame[name].max():.4g}"
        for name in map(str, frame.columns)
        if name in words and pd.api.types.is_numeric_dtype(frame[name])
    ]
    return f"{', '.join(told)}." if told else ""


def _suite_of_known(
    name: str, given: Sequence[tuple[str, str]], index: pd.Index, origin: Origin
) -> Suite:
    """Return the suite in the order of the index, with the labels as the index writes them."""
    place = find_places([label for label, _ in given], index)
    unknown = [label for (label, _), at in zip(given, place, strict=True) if at < 0]
    if unknown:
        raise ContractError(
            f"Suite '{name}' must name rows of the feature frame; {len(unknown)} of {len(given)} "
            f"are not in it: {', '.join(unknown[:5])}{', ...' if len(unknown) > 5 else ''}.",
            cause=f"Its labels run from {row_labels(index[:1])[0]} to {row_labels(index[-1:])[0]}; "
            "rows at the start lack the past that features need, the last ones their target.",
            fix="Correct or remove these rows.",
        )
    twice = [given[at][0] for at in np.flatnonzero(pd.Series(place).duplicated()).tolist()]
    if twice:
        raise ContractError(
            f"Suite '{name}' must name each row once, got {len(twice)} repeats, first {twice[0]}.",
            fix="Remove the repeats.",
        )
    order = np.argsort(place, kind="stable")
    labels = row_labels(index[place[order]])
    reasons = {str(label): given[at][1] for label, at in zip(labels, order.tolist(), strict=True)}
    return suite_of(name, reasons, origin)


def _iso(text: str) -> str:
    try:
        return pd.Timestamp(text).isoformat()
    except ValueError:  # stays as it is, and is unknown
        return text


def _as_text(value: object) -> str:
    return value.isoformat() if isinstance(value, pd.Timestamp) else str(value)


def _read(path: Path) -> pd.DataFrame:
    if path.suffix not in SUFFIXES:
        raise SourceError(
            f"A file of rows must end in {' or '.join(SUFFIXES)}, got {path}.",
            fix="Rename or convert the file.",
        )
    try:
        # As text: a label such as 0071 is not the number 71.
        return pd.read_csv(path, dtype=str) if path.suffix == ".csv" else pd.read_parquet(path)
    except (OSError, ValueError) as error:
        # pandas and pyarrow signal an unreadable table with subclasses of these two.
        raise SourceError(
            f"Rows must be readable from {path}: {error}",
            fix="Give a CSV or Parquet file with a column 'row'.",
        ) from error
