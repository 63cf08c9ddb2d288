"""Cuts a stream of records into shards whose ends depend on the records and limits alone."""

import hashlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from sluice.base.files import storage_error
from sluice.data.rows.shards import Shard

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_ROWS, _BATCH_BYTES = 4_096, 4 * 2**20
"""A record batch of a shard is written at this number of records or this total size [bytes]."""

_ASSUMED_VALUE_BYTES = 64
"""Size that is assumed for a value of a type without a fixed width, such as a text in a list
[bytes]."""


def write_shards(
    tables: "Iterator[pa.Table]",
    schema: "pa.Schema",
    folder: Path,
    *,
    first: int,
    max_rows: int,
    max_bytes: int,
) -> Iterator[Shard]:
    """Write records to shards, and yield each shard when it is complete on the disk.

    A shard ends after ``max_rows`` records, or after the record at which its values reach
    ``max_bytes``. The bytes of a shard do not depend on where the tables end.

    Args:
        tables: Records of ``schema``.
        schema: Names and types of the columns.
        folder: Existing folder of the shards.
        first: Number of the first shard.
        max_rows: Maximum number of records of a shard.
        max_bytes: Size of the values at which a shard is closed [bytes].

    Raises:
        StorageError: The folder cannot be written.
    """
    number, shard = first, None
    try:
        for table in tables:
            cumulative_bytes = _record_bytes(table).cumsum()
            num_written = 0
            while num_written < table.num_rows:
                if shard is None:
                    shard = _ShardFile(folder, number, schema)
                bytes_before = int(cumulative_bytes[num_written - 1]) if num_written else 0
                # Number of records up to and including the record that reaches one of the limits.
                num_records = min(
                    table.num_rows - num_written,
                    _BATCH_ROWS - shard.batch_rows,
                    max_rows - shard.num_rows,
                    *(
                        int(
                            np.searchsorted(
                                cumulative_bytes[num_written:], bytes_before + remaining_bytes
                            )
                        )
                        + 1
                        for remaining_bytes in (
                            _BATCH_BYTES - shard.batch_bytes,
                            max_bytes - shard.value_bytes,
                        )
                    ),
                )
                shard.append(
                    table.slice(num_written, num_records),
                    int(cumulative_bytes[num_written + num_records - 1]) - bytes_before,
                )
                num_written += num_records
                if shard.num_rows >= max_rows or shard.value_bytes >= max_bytes:
                    yield shard.finish()
                    number, shard = number + 1, None
                elif shard.batch_rows >= _BATCH_ROWS or shard.batch_bytes >= _BATCH_BYTES:
                    shard.write_batch()
        if shard is not None:
            yield shard.finish()
    finally:
        if shard is not None:
            shard.discard()


class _ShardFile:
    """Shard file that is being written. Its name is temporary until it is complete."""

    def __init__(self, folder: Path, number: int, schema: "pa.Schema") -> None:
        import pyarrow as pa

        self._path = folder / f"shard-{number:05}.arrow"
        self._partial = folder / f".{self._path.name}.partial"
        self._schema = schema
        self._parts: list[pa.Table] = []
        self.num_rows = self.value_bytes = self.batch_rows = self.batch_bytes = 0
        try:
            self._file = _HashedFile(open(self._partial, "wb"))  # noqa: SIM115 - see finish
            self._writer = pa.ipc.new_file(self._file, schema)
        except OSError as error:
            raise storage_error(self._path, error) from error

    def append(self, part: "pa.Table", num_bytes: int) -> None:
        self._parts.append(part)
        self.batch_rows += part.num_rows
        self.num_rows += part.num_rows
        self.batch_bytes += num_bytes
        self.value_bytes += num_bytes

    def write_batch(self) -> None:
        import pyarrow as pa

        # A single part is copied, too. Without the copy, Arrow would fill the padding after a slice
        # with the values that follow the slice. The bytes of the file would then depend on where
        # the tables end.
        columns = pa.concat_tables(self._parts).columns
        copies = [pa.concat_arrays([*c.chunks, c.chunks[0].slice(0, 0)]) for c in columns]
        try:
            self._writer.write_batch(pa.RecordBatch.from_arrays(copies, schema=self._schema))
        except OSError as error:
            raise storage_error(self._path, error) from error
        self._parts, self.batch_rows, self.batch_bytes = [], 0, 0

    def discard(self) -> None:
        """Close and delete the file if it is incomplete; a finished shard is kept."""
        self._file.abandon()
        self._partial.unlink(missing_ok=True)

    def finish(self) -> Shard:
        if self._parts:
            self.write_batch()
        try:
            self._writer.close()
            self._file.sync()
            os.replace(self._partial, self._path)
        except OSError as error:
            raise storage_error(self._path, error) from error
        return Shard(
            file=self._path.name,
            num_rows=self.num_rows,
            num_bytes=self._path.stat().st_size,
            sha256=self._file.digest,
        )


class _HashedFile(io.RawIOBase):
    """File that computes the SHA-256 of its content."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._sha = file, hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self._sha.update(content)
        return self._file.write(content)

    def flush(self) -> None:
        if not self._file.closed:
            self._file.flush()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def close(self) -> None:
        """Do nothing: Arrow closes its sink when it finishes, but ``sync`` needs the open file."""

    def sync(self) -> None:
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())

    def abandon(self) -> None:
        self._file.close()

    @property
    def digest(self) -> str:
        return self._sha.hexdigest()


def _record_bytes(table: "pa.Table") -> NDArray[np.int64]:
    """Return the size of the values of every record [bytes]."""
    record_bytes = np.zeros(table.num_rows, np.int64)
    for column in table.columns:
        record_bytes += _column_bytes(column)
    return record_bytes


def _column_bytes(column: "pa.ChunkedArray") -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if any(
        check(kind)
        for check in (
            *(pa.types.is_string, pa.types.is_large_string),
            *(pa.types.is_binary, pa.types.is_large_binary),
        )
    ):
        return pc.fill_null(pc.binary_length(column), 0).to_numpy()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pc.fill_null(pc.list_value_length(column), 0).to_numpy() * _bytes_per_value(
            kind.value_type
        )
    return _bytes_per_value(kind)


def _bytes_per_value(kind: "pa.DataType") -> int:
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:  # a type without a fixed width
        return _ASSUMED_VALUE_BYTES
