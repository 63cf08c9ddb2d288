"""Reads tables from Parquet or CSV files."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from sluice.base.errors import ContractError, SourceError
from sluice.base.settings import suggest_nearest

SUFFIXES = (".parquet", ".csv")


def read_frame(path: Path, *, ignored_columns: Sequence[str]) -> pd.DataFrame:
    """Return the table of a file without the ignored columns.

    Args:
        path: ``.parquet`` or ``.csv`` file, rows in time order.
        ignored_columns: Columns to exclude, such as the time.

    Raises:
        SourceError: The file is missing, truncated, or has another format.
        ContractError: An ignored column does not exist.
    """
    import pyarrow as pa

    if path.suffix not in SUFFIXES:
        raise SourceError(
            f"A table must be a file ending in {' or '.join(SUFFIXES)}, got {path}.",
            fix="Convert the file to Parquet or CSV, or correct the name.",
        )
    try:
        frame = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    except FileNotFoundError:
        raise SourceError(f"There is no file {path}.", fix="Correct the path.") from None
    except (pa.ArrowInvalid, ValueError, OSError) as error:
        raise SourceError(
            f"{path} cannot be read: {str(error).strip()}.",
            cause="The file is empty or truncated, its format does not match its suffix, or you "
            "have no permission to read it.",
            fix="Check its permissions, or write the file again.",
        ) from None
    for name in ignored_columns:
        if name not in frame:
            column_names = [str(column) for column in frame.columns]
            raise ContractError(
                f"{path} has no column '{name}' to ignore.{suggest_nearest(name, column_names)}",
                fix=f"Use one of its columns: {', '.join(sorted(column_names))}.",
            )
    return frame.drop(columns=list(ignored_columns))
