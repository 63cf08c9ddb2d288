"""Stores tables as content-addressed Parquet files: equal frames have equal bytes and digests."""

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
    """Record of a stored table: the digests of its file and of its values, and a summary."""

    digest: str = Field(description="Digest of the values, independent of the file format.")
    artifact: str = Field(description="Artifact digest of the Parquet file.")
    num_rows: int
    columns: tuple[str, ...]
    first_label: str = Field(description="Index label of the first row.")
    last_label: str = Field(description="Index label of the last row.")


def save_table(frame: pd.DataFrame, store: ArtifactStore) -> TableRecord:
    """Store ``frame`` as Parquet and return its record. Saving the same frame again has no effect.

    Metadata in ``frame.attrs`` is not part of the table and is not stored.

    Raises:
        ContractError: The table has no rows or no columns, or a column has values of several types.
        StorageError: The store cannot be written.
    """
    if frame.empty:
        raise ContractError(
            f"A table must have at least one row and one column, got {frame.shape[0]} rows and "
            f"{frame.shape[1]} columns.",
            fix="Find the step that dropped all rows.",
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
    """Return the table of ``record``, with the values, dtypes and index that were saved.

    Raises:
        IntegrityError: The file is missing or damaged, or contains a different table.
    """
    frame: pd.DataFrame = pq.read_table(io.BytesIO(store.get(record.artifact))).to_pandas()
    digest = digest_frame(frame)
    if digest != record.digest:
        raise IntegrityError(
            f"Artifact {short(record.artifact)} contains table {short(digest)}, required "
            f"{short(record.digest)}.",
            cause="The record refers to another file, or this version of pyarrow or pandas returns "
            "other values.",
            fix="Run the stage that created the table again.",
        )
    return frame


def _parquet_bytes(frame: pd.DataFrame) -> bytes:
    without_attrs = frame.copy(deep=False)
    without_attrs.attrs = {}
    buffer = io.BytesIO()
    try:
        pq.write_table(pa.Table.from_pandas(without_attrs), buffer, compression="zstd")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ContractError(
            f"Each column of a table must have values of one type: {error.args[0]}.",
            fix="Convert the column in the message to one type before saving the table.",
        ) from None
    return buffer.getvalue()
