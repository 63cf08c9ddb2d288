"""A Parquet table that is kept as an artifact, and may have come in a file of somebody else's."""

import io
from collections.abc import Mapping

import pandas as pd

from sluice.base.errors import IntegrityError, SourceError
from sluice.data.size_limits import require_bounded_parquet
from sluice.data.source_settings import ParquetSource


def require_bounded_table(content: bytes, *, what: str) -> None:
    """Refuse a table that would be larger in memory than a source's rows may be by default.

    Args:
        content: The Parquet file.
        what: Names it in the message.

    Raises:
        IntegrityError: It would be.
        pyarrow.ArrowInvalid, OSError: The file is none, or torn.
    """
    try:
        require_bounded_parquet(content, ParquetSource(uri="artifact"))
    except SourceError as error:
        raise IntegrityError(
            f"{what} does not open: as rows in memory it would be too large "
            f"({error.what.rpartition(', got ')[2].rstrip('.')}).",
            cause="A small file claims to hold far more than it weighs; Sluice wrote no such one.",
            fix="Do not use the version; find out who made it.",
        ) from None


def read_table_bytes(content: bytes, *, what: str, kinds: Mapping[str, str]) -> pd.DataFrame:
    """Return the rows of a table, once it is known that they fit into memory.

    Args:
        content: The Parquet file.
        what: Names it in messages.
        kinds: Columns that are read, each with the kinds of numpy dtype that it may have; "O" is
            text.

    Raises:
        IntegrityError: It is no Parquet table, lacks a column or has one of another kind, or would
            be too large.
    """
    import pyarrow as pa

    try:
        require_bounded_table(content, what=what)
        rows = pd.read_parquet(io.BytesIO(content), columns=[*kinds])
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _no_table(what, error) from error
    for name, kind in kinds.items():
        is_text = kind == "O" and pd.api.types.is_string_dtype(rows[name])
        if not (is_text or (kind != "O" and rows[name].dtype.kind in kind)):
            raise _no_table(what, f"column '{name}' has another type, {rows[name].dtype}")
    return rows


def _no_table(what: str, error: object) -> IntegrityError:
    return IntegrityError(
        f"{what} must be a Parquet table with the columns that Sluice writes, and does not open: "
        f"{error}",
        cause="The artifact was not written by Sluice; it may have come in a version file.",
        fix="Train the version here, or do not use it.",
    )
