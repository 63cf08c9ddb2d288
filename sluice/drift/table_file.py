"""Tables as people hand them over: a Parquet or a CSV file."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from sluice.base.errors import ContractError, SourceError
from sluice.base.settings import nearest

SUFFIXES = (".parquet", ".csv")


def read_frame(path: Path, *, ignored: Sequence[str]) -> pd.DataFrame:
    """Return the rows of a file without the columns that are not to be watched.

    Args:
        path: ``.parquet`` or ``.csv``, rows in time order.
        ignored: Columns to leave out, such as the time.

    Raises:
        SourceError: There is no such file, or it is of another kind or torn.
        ContractError: It does not have a column that is to be left out.
    """
    import pyarrow as pa

    if path.suffix not in SUFFIXES:
        raise SourceError(
            f"A table must be a file ending in {' or '.join(SUFFIXES)}, got {path}.",
            fix="Write it as Parquet or CSV, or correct the name.",
        )
    try:
        frame = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    except FileNotFoundError:
        raise SourceError(f"There is no file {path}.", fix="Correct the path.") from None
    except (pa.ArrowInvalid, ValueError, OSError) as error:
        raise SourceError(
            f"{path} cannot be read: {str(error).strip()}.",
            cause="The file is empty, torn, or not what its name says.",
            fix="Write it again.",
        ) from None
    for name in ignored:
        if name not in frame:
            known = [str(column) for column in frame.columns]
            raise ContractError(
                f"{path} must have the column '{name}' to leave it out, and does not."
                f"{nearest(name, known)}",
                fix=f"Known here: {', '.join(sorted(known))}.",
            )
    return frame.drop(columns=list(ignored))
