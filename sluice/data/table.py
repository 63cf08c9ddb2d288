"""A table as a content-addressed file: the same frame has the same bytes and version (DATA-4)."""

import io

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import digest_frame, short
from sluice.base.errors import ContractError, IntegrityError
from sluice.base.settings import Record


class TableRecord(Record):
    """Where a table lies and what it is."""

    digest: str = Field(description="Digest of the values, whatever file format holds them.")
    artifact: str = Field(description="Artifact digest of the Parquet file.")
    num_rows: int
    columns: tuple[str, ...]
    first_label: str = Field(description="Index label of the first row.")
    last_label: str = Field(description="Index label of the last row.")


def save_table(frame: pd.DataFrame, store: ArtifactStore) -> TableRecord:
    """Store ``frame`` as Parquet and return its record; saving it again changes nothing.

    Notes that pandas carries in ``frame.attrs`` are not part of the table and are left out.

    Raises:
        ContractError: The table has no rows, or a column mixes kinds of values.
        StorageError: The store cannot be written.
    """
    if frame.empty:
        raise ContractError(
            f"A table must hold at least one row and one column, got {frame.shape[0]} rows and "
            f"{frame.shape[1]} columns.",
            fix="Find the step that dropped every row.",
        )
    return TableRecord(
        digest=digest_frame(frame),
        artifact=store.put(_parquet_bytes(frame)),
        num_rows=len(frame),
        columns=tuple(str(name) for name in frame.columns),
        first_label=str(frame.index[0]),
        last_label=str(frame.index[-1]),
    )


def load_table(record: TableRecord, store: ArtifactStore) -> pd.DataFrame:
    """Return the table of ``record``, equal to the one saved: values, dtypes, index.

    Raises:
        IntegrityError: The file is missing or damaged, or holds another table than recorded.
    """
    frame: pd.DataFrame = pq.read_table(io.BytesIO(store.get(record.artifact))).to_pandas()
    found = digest_frame(frame)
    if found != record.digest:
        raise IntegrityError(
            f"Artifact {short(record.artifact)} holds table {short(found)}, required "
            f"{short(record.digest)}.",
            cause="The record names another file, or this reader turns the file into other values.",
            fix="Run the stage that made the table again.",
        )
    return frame


def _parquet_bytes(frame: pd.DataFrame) -> bytes:
    bare = frame.copy(deep=False)
    bare.attrs = {}
    buffer = io.BytesIO()
    try:
        pq.write_table(pa.Table.from_pandas(bare), buffer, compression="zstd")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ContractError(
            f"A table's columns must each hold one kind of value: {error.args[0]}.",
            fix="Convert the named column to one kind before handing the table on.",
        ) from None
    return buffer.getvalue()
