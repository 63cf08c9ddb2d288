"""Validates a table against a declared schema and reports all problems at once."""

import difflib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from sluice.base.errors import ContractError, SchemaError
from sluice.base.pluralize import pluralize
from sluice.data.schema import Column, ColumnKind, Schema

_MIN_ABBREVIATION_CHARS = 3
"""Minimum length of a name that counts as an abbreviation of a longer name [characters]."""

# NumPy dtype kinds by declared kind. Integers are accepted as floats, because the conversion is
# exact up to 2^53.
_DTYPE_KINDS: dict[ColumnKind, str] = {
    "float": "fiu",
    "int": "iu",
    "bool": "b",
    "datetime": "M",
    "string": "",
}


def validate_schema(df: pd.DataFrame, required: Schema | Sequence[str], stage: str) -> None:
    """Raise an error for a table that does not match the schema ``required``.

    A required name may refer to a column or to the index; additional columns are allowed.

    Args:
        df: The table.
        required: Schema of the stage, or a list of names, of which only the presence is checked.
        stage: Stage in which the table is used ("raw", "features", ...), for the message.

    Raises:
        SchemaError: Lists all problems: missing columns with the most similar existing name,
            dtypes, nulls with the first row, infinite values, an index that is unnamed, unsorted
            or not unique; then the available columns, the index and the table's shape.
    """
    if isinstance(required, Schema):
        problems = [*_column_problems(df, required), *_index_problems(df.index, required)]
    else:
        names = _require_names(required)
        num_matches = _count_names(df)
        problems = [problem for name in names for problem in _lookup_problems(num_matches, name)]
    if problems:
        available = ", ".join(sorted(map(str, df.columns))) or "none"
        index = ", ".join(f"'{name}'" for name in _index_names(df))
        raise SchemaError(
            f"{stage}: the table does not match its schema: {'; '.join(problems)}. "
            f"Available columns: {available}. {f'Index: {index}. ' if index else ''}"
            f"Rows and columns: {df.shape[0]} x {df.shape[1]}.",
            cause="The source changed, or a name or kind in the declared schema is wrong.",
            fix="Rename or repair these columns at the source, or correct the declared schema.",
        )


def nearest_name(name: str, known: list[str]) -> str | None:
    """Return the known name most similar to ``name``, ignoring case; None if none is similar.

    A name and its abbreviation, of at least three letters, are similar.

    >>> nearest_name("close", ["Open", "CLOSE", "Volume"])
    'CLOSE'
    >>> nearest_name("temperature", ["demand", "temp"])
    'temp'
    """
    name_by_lowercase = {known_name.lower(): known_name for known_name in reversed(known)}
    matches = difflib.get_close_matches(name.lower(), list(name_by_lowercase), n=1)
    if matches:
        return name_by_lowercase[matches[0]]
    for lowercase, known_name in name_by_lowercase.items():
        shorter, longer = sorted((name.lower(), lowercase), key=len)
        if len(shorter) >= _MIN_ABBREVIATION_CHARS and longer.startswith(shorter):
            return known_name
    return None


def _column_problems(df: pd.DataFrame, required: Schema) -> list[str]:
    num_matches = _count_names(df)
    problems: list[str] = []
    for column in required.columns:
        problems += _lookup_problems(num_matches, column.name) or _value_problems(
            _column_or_index_level(df, column.name), column
        )
    return problems


def _count_names(df: pd.DataFrame) -> Counter[str]:
    """Return the number of columns of each name; index levels count if no column has the name."""
    num_columns = Counter(str(column) for column in df.columns)
    return Counter({**Counter(_index_names(df)), **num_columns})


def _lookup_problems(num_matches: Counter[str], name: str) -> list[str]:
    """Return why a name does not identify exactly one column or index level; [] if it does."""
    if num_matches[name] == 1:
        return []
    if num_matches[name] > 1:
        return [f"column '{name}' occurs {num_matches[name]} times"]
    nearest = nearest_name(name, list(num_matches))
    hint = f" (nearest: '{nearest}')" if nearest else ""
    return [f"column '{name}' is missing{hint}"]


def _column_or_index_level(df: pd.DataFrame, name: str) -> "pd.Series[Any]":
    """Return a column, or the index level of that name."""
    if name in df.columns:
        return df[name]
    level = df.index.get_level_values(name)
    return pd.Series(level, index=df.index, name=name)


def _index_names(df: pd.DataFrame) -> list[str]:
    return [str(name) for name in df.index.names if name is not None]


def _require_names(required: Sequence[str]) -> Sequence[str]:
    if isinstance(required, str) or not all(isinstance(name, str) for name in required):
        raise ContractError(
            f"validate_schema requires a Schema or a list of column names, got {required!r}.",
            fix="Pass the names in a list, as in ['open', 'close'].",
        )
    return required


def _value_problems(series: "pd.Series[Any]", column: Column) -> list[str]:
    problems: list[str] = []
    if not _is_kind(series.dtype, column.kind):
        problems.append(
            f"column '{column.name}' must be {column.kind}, got {series.dtype}"
            f"{_describe_first_text(series, column.kind)}"
        )
    is_null = series.isna().to_numpy()
    if is_null.any() and not column.nullable:
        problems.append(
            f"column '{column.name}' must have no nulls, got {is_null.sum()} of {len(series)}, "
            f"{_describe_first_row(series.index, is_null)}"
        )
    if series.dtype.kind == "f":
        is_infinite = np.isinf(series.to_numpy(np.float64, na_value=np.nan))
        if is_infinite.any():
            problems.append(
                f"column '{column.name}' must be finite, got {is_infinite.sum()} infinite of "
                f"{len(series)}, {_describe_first_row(series.index, is_infinite)}"
            )
    return problems


def _index_problems(index: pd.Index, required: Schema) -> list[str]:
    problems: list[str] = []
    if required.index_name is not None and index.name != required.index_name:
        got = f"'{index.name}'" if index.name is not None else "no name"
        problems.append(f"the index must be named '{required.index_name}', got {got}")
    if required.index_kind is not None and not _is_kind(index.dtype, required.index_kind):
        is_text = required.index_kind == "datetime" and index.inferred_type == "string"
        detail = f": {_describe_first_non_date(index)}" if is_text else ""
        problems.append(f"the index must be {required.index_kind}, got {index.dtype}{detail}")
    if index.hasnans:
        is_null = np.asarray(index.isna())
        problems.append(f"the index must have no nulls, {_describe_first_row(index, is_null)}")
    elif required.index_sorted and required.index_kind is None and index.inferred_type == "string":
        problems.append(
            "the index must be dates or numbers to be in order, got text: "
            f"{_describe_first_non_date(index)} (correct it, or convert it with pd.to_datetime; if "
            "text is intended, declare index_kind='string')"
        )
    elif required.index_sorted and not index.is_monotonic_increasing:
        problems.append(f"the index must be sorted, {_describe_first_unsorted(index)}")
    if required.index_unique and not index.is_unique:
        is_repeated = np.asarray(index.duplicated())
        problems.append(
            f"the index must be unique, got {pluralize(int(is_repeated.sum()), 'repeated label')}, "
            f"{_describe_first_row(index, is_repeated)}"
        )
    return problems


def _is_kind(dtype: Any, kind: ColumnKind) -> bool:
    if kind == "string":
        return bool(pd.api.types.is_string_dtype(dtype) or dtype.kind == "O")
    return dtype.kind in _DTYPE_KINDS[kind]


def _describe_first_text(series: "pd.Series[Any]", kind: ColumnKind) -> str:
    """Describe the first value that is not a number, if a number is required."""
    if kind not in ("float", "int"):
        return ""
    is_text = (pd.to_numeric(series, errors="coerce").isna() & series.notna()).to_numpy()
    if series.dtype.kind == "M" or not is_text.any():
        return ""
    return f" with {series[is_text].iloc[0]!r} {_describe_first_row(series.index, is_text)}"


def _describe_first_non_date(index: pd.Index) -> str:
    """Describe the first index label that is not a date: it makes all index labels texts."""
    dates = pd.to_datetime(index.astype("str"), format="ISO8601", errors="coerce", utc=True)
    is_no_date = np.asarray(dates.isna())
    row = int(is_no_date.argmax())
    reason = ", which is not a date like 2024-12-31" if is_no_date.any() else ""
    return f"{index[row]!r} at row {row}{reason}"


def _describe_first_unsorted(index: pd.Index) -> str:
    try:
        decreases = np.asarray(index[1:] < index[:-1])
    except TypeError:
        return "its labels cannot be compared with each other"
    row = int(np.flatnonzero(decreases)[0]) + 1
    return f"first label out of order: {index[row]} at row {row}, after {index[row - 1]}"


def _describe_first_row(index: pd.Index, is_invalid: "np.ndarray[Any, np.dtype[np.bool_]]") -> str:
    """Return the position and the label of the first invalid row, as text."""
    row = int(np.flatnonzero(is_invalid)[0])
    return f"first at row {row} (label {index[row]})"
