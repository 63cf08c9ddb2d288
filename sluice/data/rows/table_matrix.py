"""Converts a table file once to a matrix of float32 numbers that can be memory-mapped."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sluice.base.digests import digest_json, short
from sluice.base.errors import ContractError, SourceError
from sluice.base.file_lock import hold_lock
from sluice.base.files import stream_atomic
from sluice.base.settings import suggest_nearest
from sluice.data.rows.npy_file import NpyWriter
from sluice.data.rows.shards import INDEX_NAME, ShardReader

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_ROWS = 2**16
"""Number of rows of a Parquet file that are converted at once."""


def table_matrix(
    path: Path, columns: Sequence[str] | None, cache: Path, *, allow_nan: bool
) -> Path:
    """Return the ``.npy`` file with the columns of a table as float32 (N, D).

    The file is written if the table is used for the first time or has changed. The name of the file
    contains a digest of the table's path, size and modification time, of ``columns`` and
    ``allow_nan``.

    Args:
        path: Parquet or Arrow file, or a folder written by ``sluice pack``.
        columns: Columns in their order; None for all.
        cache: Folder of the converted files.
        allow_nan: Whether empty and non-finite values are kept as NaN and infinity.

    Raises:
        SourceError: The file is missing or cannot be read.
        ContractError: A column is missing or not numeric, or a value is not finite.
        StorageError: The cache cannot be written.

    Cost:
        One pass over the columns. The memory holds 65,536 rows of a Parquet file, or one record
        batch of an Arrow file or shard.
    """
    inputs = [str(path.resolve()), _size_and_time(path), columns and list(columns), allow_nan]
    matrix = cache / f"{path.stem}-{short(digest_json(inputs))}.npy"
    if not matrix.exists():
        with hold_lock(cache / f".{matrix.name}.lock", wait=True):
            if not matrix.exists():  # another process may have written it meanwhile
                _convert_table(path, columns, matrix, allow_nan=allow_nan)
    return matrix


def _size_and_time(path: Path) -> list[int]:
    file = path / INDEX_NAME if path.is_dir() else path
    try:
        status = file.stat()
    except OSError as error:
        raise SourceError(
            f"There is no table {file} ({error.strerror}).",
            fix="Name a Parquet or Arrow file, or a folder written by: sluice pack SOURCE DIR",
        ) from None
    return [status.st_size, status.st_mtime_ns]


def _convert_table(
    path: Path, columns: Sequence[str] | None, matrix: Path, *, allow_nan: bool
) -> None:
    for stale_file in matrix.parent.glob(f".{matrix.name}.[0-9a-f]*"):
        stale_file.unlink()  # of a killed process; the lock excludes a running process
    with stream_atomic(matrix) as file:
        writer = None
        for batch in _read(path, columns):
            block = np.empty((batch.num_rows, batch.num_columns), np.float32)
            if writer is None:
                writer = NpyWriter(file, np.float32, block.shape[1:])
            for i, name in enumerate(batch.schema.names):
                block[:, i] = _float32_values(
                    batch.column(i), name, path, writer.num_rows, allow_nan=allow_nan
                )
            writer.append(block)
        if writer is None or not writer.num_rows:
            raise SourceError(
                f"{path} must contain at least one row, but contains none.",
                fix="Write the file again, or name another file.",
            )
        writer.finish()


def _read(path: Path, columns: Sequence[str] | None) -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.is_dir():
        shards = ShardReader(path)
        _require_columns(columns, tuple(shards.columns), path)
        yield from shards.batches(columns)
        return
    try:
        if path.suffix in (".arrow", ".feather", ".ipc"):
            with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
                _require_columns(columns, reader.schema.names, path)
                for i in range(reader.num_record_batches):
                    batch = reader.get_batch(i)
                    yield batch if columns is None else batch.select(list(columns))
        else:
            with pq.ParquetFile(path, pre_buffer=False, buffer_size=2**20) as parquet:
                _require_columns(columns, parquet.schema_arrow.names, path)
                yield from parquet.iter_batches(
                    _BATCH_ROWS, columns=None if columns is None else list(columns)
                )
    except (pa.ArrowInvalid, OSError) as error:
        raise SourceError(
            f"{path} cannot be read as a table: {error}.",
            cause="The file is incomplete or has another format.",
            fix="Write it again as Parquet or as an Arrow file (.arrow).",
        ) from None


def _require_columns(columns: Sequence[str] | None, known: Sequence[str], path: Path) -> None:
    for name in columns or ():
        if name not in known:
            raise ContractError(
                f"{path} has no column '{name}'.{suggest_nearest(name, list(known))}",
                fix=f"Name columns of the table: {', '.join(known)}.",
            )


def _float32_values(
    column: "pa.Array", name: str, path: Path, first_row: int, *, allow_nan: bool
) -> NDArray[np.float32]:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_decimal(kind):
        column = column.cast(pa.float64())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise ContractError(
            f"The column '{name}' of {path} must be numeric, got {kind}.",
            cause="The input of a network must be numeric, and text is not converted.",
            fix="Name the numeric columns only, or write the classes as integers from 0.",
        )
    original: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        values = original.astype(np.float32)
    invalid_rows = np.flatnonzero(~np.isfinite(values))
    if allow_nan or not invalid_rows.size:
        return values
    row = int(invalid_rows[0])
    raise ContractError(
        f"The column '{name}' of {path} must have finite numbers below 3.4e38, got "
        f"{column[row].as_py()} at row {first_row + row}.",
        cause="The value is missing, was computed from a missing value, or is too large.",
        fix="Fill or drop the row before the table is written, or pass allow_nan=True.",
    )
