"""Validates and reads Parquet tables of artifacts, which may be from an untrusted imported file."""

import io
from collections.abc import Mapping

import pandas as pd

from sluice.base.errors import IntegrityError, SourceError
from sluice.data.size_limits import require_bounded_parquet
from sluice.data.source_settings import ParquetSource


def require_bounded_table(content: bytes, *, what: str) -> None:
    """Raise an error for a table larger in memory than the default ``max_bytes`` of a source.

    Args:
        content: The Parquet file.
        what: Name of the table in the message.

    Raises:
        IntegrityError: The table would be too large.
        pyarrow.ArrowInvalid, OSError: The file is not a Parquet file, or is incomplete.
    """
    try:
        require_bounded_parquet(content, ParquetSource(uri="artifact"))
    except SourceError as error:
        raise IntegrityError(
            f"{what} cannot be opened: as rows in memory it would be too large "
            f"({error.what.rpartition(', got ')[2].rstrip('.')}).",
            cause="The file is small, but its rows are far larger in memory. Sluice does not write "
            "such files.",
            fix="Do not use the version; find out who created it.",
        ) from None


def read_table_bytes(content: bytes, *, what: str, kinds: Mapping[str, str]) -> pd.DataFrame:
    """Return the rows of a table after checking that they fit into memory.

    Args:
        content: The Parquet file.
        what: Name of the table in messages.
        kinds: Columns to read, with the accepted numpy dtype kinds of each column; "O" is text.

    Raises:
        IntegrityError: The file is not a Parquet table, a column is missing or has another type, or
            the table would be too large.
    """
    import pyarrow as pa

    try:
        require_bounded_table(content, what=what)
        rows = pd.read_parquet(io.BytesIO(content), columns=[*kinds])
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _invalid_table_error(what, error) from error
    for name, kind in kinds.items():
        is_text = kind == "O" and pd.api.types.is_string_dtype(rows[name])
        if not (is_text or (kind != "O" and rows[name].dtype.kind in kind)):
            raise _invalid_table_error(
                what, f"column '{name}' has another type, {rows[name].dtype}"
            )
    return rows


def _invalid_table_error(what: str, error: object) -> IntegrityError:
    return IntegrityError(
        f"{what} must be a Parquet table with the columns that Sluice writes, but it cannot be "
        f"opened: {error}",
        cause="The artifact was not written by Sluice; it may come from an imported version file.",
        fix="Train the version on this machine, or do not use it.",
    )
