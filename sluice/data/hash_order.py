"""Orders rows without a time order by a hash of their values, so that the order is stable.

A seeded shuffle changes the position of every row when a single row is added. A model that was
trained before would then have seen rows that are now test rows. In an order by the values of the
rows, rows keep their order when other rows are added.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from sluice.base.errors import ContractError

_KEY_BITS = 53
"""Number of bits of a key. Many tables store numbers as float64, which represents integers of up to
this many bits exactly."""


def in_hash_order(rows: pd.DataFrame, columns: Sequence[str], *, name: str) -> pd.DataFrame:
    """Return the rows in pseudo-random order; the index label of a row is its key.

    The rows are sorted by the key: the start of the SHA-256 hash of the row's values in
    ``columns``, as an integer. There is no seed, so that nobody can repeat a split until its result
    is favourable. The key replaces time in a walk-forward split. A model that was trained on keys
    up to some value has not seen any row with a larger key. This remains true after rows were added
    or removed. So walk-forward folds over the keys are valid folds of shuffled rows.

    Rows that are equal in ``columns`` have the same key and are adjacent. Whether duplicates are
    allowed is defined by the schema (``index_unique``).

    Args:
        rows: The table; its index is replaced.
        columns: Numeric or text columns that identify a row, such as the path of a file. Do not
            include the label to be predicted, otherwise equal rows with different labels count as
            different rows.
        name: Name of the new index.

    Raises:
        ContractError: A column is missing, neither numeric nor text, or a text is missing.

    Cost:
        3 us per row of 64 columns.

    Assumes:
        Rows are independent. Related rows, such as those of one patient, are distributed over train
        and test rows, so scores would not be valid for new patients.
    """
    missing_columns = [column for column in columns if column not in rows.columns]
    numeric_columns = [c for c in columns if c in rows.columns and rows[c].dtype.kind in "fiub"]
    text_columns = [
        c for c in columns if c in rows.columns and c not in numeric_columns and _is_text(rows[c])
    ]
    unusable_columns = [
        c for c in columns if c not in (*missing_columns, *numeric_columns, *text_columns)
    ]
    if missing_columns or unusable_columns or not columns:
        problems = {
            "missing": missing_columns,
            "of another type or with missing values": unusable_columns,
        }
        problem_texts = [f"{what}: {', '.join(names)}" for what, names in problems.items() if names]
        raise ContractError(
            "A key requires numeric columns, or text columns without missing values; "
            f"{'; '.join(problem_texts) or 'got no columns'}.",
            fix="Pass the columns that identify a row.",
        )
    # Adding 0.0 converts -0.0 to 0.0: both are the same value, but have different bytes.
    values_ND = np.ascontiguousarray(rows[numeric_columns].to_numpy("<f8") + 0.0)
    texts_N = _text_bytes(rows, text_columns)
    keys = [
        _compute_key(row_D.tobytes() + text) for row_D, text in zip(values_ND, texts_N, strict=True)
    ]
    index = pd.Index(keys, dtype="int64", name=name)
    return rows.set_axis(index).sort_index(kind="stable")


def _is_text(column: "pd.Series[Any]") -> bool:
    return pd.api.types.infer_dtype(column, skipna=True) == "string" and not column.hasnans


def _text_bytes(rows: pd.DataFrame, columns: Sequence[str]) -> list[bytes]:
    """Return the texts of each row as bytes; the length before each text keeps rows distinct."""
    contents = [b""] * len(rows)
    for column in columns:
        encoded_texts = [str(text).encode() for text in rows[column]]
        contents = [
            content + len(text).to_bytes(8, "little") + text
            for content, text in zip(contents, encoded_texts, strict=True)
        ]
    return contents


def _compute_key(content: bytes) -> int:
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big") >> (64 - _KEY_BITS)
