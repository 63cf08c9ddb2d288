"""Shards that ``sluice pack`` writes: Arrow files of bounded size, with an index file.

An Arrow file is not compressed, so that one record is read without decoding its neighbours.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from sluice.base.errors import SourceError
from sluice.base.settings import Record

if TYPE_CHECKING:
    import pyarrow as pa

INDEX_NAME = "index.json"
"""Name of the index file in a folder of shards."""


class Shard(Record):
    """One shard of a packed source."""

    file: str = Field(description="Name of the file in the folder.")
    num_rows: int = Field(description="Number of records.")
    num_bytes: int = Field(description="Size of the file [bytes].")
    sha256: str = Field(description="SHA-256 of the file.")


class InputFile(Record):
    """One file of the packed source, with the values by which a change is detected."""

    name: str = Field(description="Path of the file, without credentials.")
    num_bytes: int | None = Field(description="Size [bytes]; None if the file system has no size.")
    version: str = Field(description="Modification time or entity tag; empty if unknown.")


class ShardIndex(Record):
    """Content of the index file of a folder of shards."""

    source: str = Field(description="Source as it was given, without values of variables.")
    format: str = Field(description="Format of the source.")
    inputs: tuple[InputFile, ...] = Field(description="Files of the source in their order.")
    max_shard_rows: int = Field(description="Maximum number of records of a shard.")
    max_shard_bytes: int = Field(description="Size at which a shard is closed [bytes].")
    columns: dict[str, str] = Field(description="Arrow type of each column, by name.")
    shards: tuple[Shard, ...] = Field(description="Finished shards in their order.")
    complete: bool = Field(description="Whether the whole source is packed.")

    @property
    def num_rows(self) -> int:
        """Number of records in finished shards."""
        return sum(shard.num_rows for shard in self.shards)


def read_index(folder: Path) -> ShardIndex | None:
    """Return the index of a folder of shards, or None if the folder has no index.

    Raises:
        SourceError: The index cannot be read.
    """
    path = folder / INDEX_NAME
    try:
        return ShardIndex.model_validate_json(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError, UnicodeDecodeError) as error:
        raise SourceError(
            f"{path} cannot be read as the index of packed shards: {error}.",
            cause="The file is damaged, or was written by another version of Sluice.",
            fix="Remove the folder, and pack the source again: sluice pack SOURCE DIR",
        ) from None


class ShardReader:
    """Random access to the records of packed shards, memory-mapped again in every process.

    Args:
        folder: Folder written by ``sluice pack``.

    Raises:
        SourceError: The folder has no index, packing has not finished, or a shard is missing or
            has another size.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder).absolute()
        index = read_index(self.folder)
        if index is None or not index.complete:
            state = "no index" if index is None else "an index of an unfinished packing"
            raise SourceError(
                f"{folder} must be a folder of packed shards, but has {state}.",
                fix="Run, or continue: sluice pack SOURCE DIR",
            )
        self.columns = dict(index.columns)
        self._shards = index.shards
        self._first_rows = [0, *accumulate(shard.num_rows for shard in index.shards)]
        for shard in index.shards:
            self._require_size(shard)
        self._open_shards: dict[int, _OpenShard] = {}

    def __len__(self) -> int:
        return self._first_rows[-1]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open_shards": {}}

    def records(
        self, rows: Sequence[int] | NDArray[np.int64], columns: Sequence[str] | None = None
    ) -> list[dict[str, Any]]:
        """Return the chosen records as dicts, in the order of ``rows``.

        Args:
            rows: Positions of the records; may repeat.
            columns: Columns to read; None for all.
        """
        names = tuple(self.columns) if columns is None else tuple(columns)
        records = []
        for row in rows:
            number = bisect_right(self._first_rows, row) - 1
            records.append(
                self._open_shard(number).record(int(row) - self._first_rows[number], names)
            )
        return records

    def numbers(self, rows: NDArray[np.int64], columns: Sequence[str]) -> NDArray[np.float32]:
        """Return numeric columns of the chosen records, (B, columns); a missing value is NaN.

        Args:
            rows: Positions of the records, (B,); may repeat.
            columns: Numeric columns.
        """
        numbers = np.empty((len(rows), len(columns)), np.float32)
        shard_numbers = np.searchsorted(self._first_rows, rows, side="right") - 1
        for number in np.unique(shard_numbers):
            positions = np.flatnonzero(shard_numbers == number)
            shard_rows = rows[positions] - self._first_rows[number]
            numbers[positions] = self._open_shard(int(number)).numbers(shard_rows, columns)
        return numbers

    def batches(self, columns: Sequence[str] | None = None) -> "Iterator[pa.RecordBatch]":
        """Yield all records in their order, in batches of a few megabytes."""
        for number in range(len(self._shards)):
            for batch in self._open_shard(number).batches:
                yield batch if columns is None else batch.select(list(columns))

    def _open_shard(self, number: int) -> "_OpenShard":
        if number not in self._open_shards:
            self._open_shards[number] = _OpenShard(self._require_size(self._shards[number]))
        return self._open_shards[number]

    def _require_size(self, shard: Shard) -> Path:
        path = self.folder / shard.file
        size = path.stat().st_size if path.is_file() else None
        if size != shard.num_bytes:
            problem = "is missing" if size is None else f"has {size:,} bytes"
            raise SourceError(
                f"The shard {path} must have {shard.num_bytes:,} bytes, but {problem}.",
                cause="The file was removed, or copied incompletely.",
                fix="Copy the folder again, or repair it: sluice pack SOURCE DIR",
            )
        return path


class _OpenShard:
    """Record batches of one memory-mapped shard."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        self.batches = [reader.get_batch(n) for n in range(reader.num_record_batches)]
        self._first_rows = [0, *accumulate(batch.num_rows for batch in self.batches)]
        self._views: dict[tuple[int, str], NDArray[Any]] = {}

    def numbers(self, rows: NDArray[np.int64], names: Sequence[str]) -> NDArray[np.float32]:
        numbers = np.empty((len(rows), len(names)), np.float32)
        batch_numbers = np.searchsorted(self._first_rows, rows, side="right") - 1
        for number in np.unique(batch_numbers).tolist():
            positions = np.flatnonzero(batch_numbers == number)
            batch_rows = rows[positions] - self._first_rows[number]
            for index, name in enumerate(names):
                numbers[positions, index] = self._column(number, name)[batch_rows]
        return numbers

    def _column(self, number: int, name: str) -> NDArray[Any]:
        """Return a column of a batch as a view of the file.

        A column of booleans or with missing values is copied.
        """
        if (number, name) not in self._views:
            column = self.batches[number].column(name)
            if column.null_count or str(column.type) == "bool":
                copied: NDArray[Any] = column.to_numpy(zero_copy_only=False)
                return copied
            self._views[number, name] = column.to_numpy(zero_copy_only=True)
        return self._views[number, name]

    def record(self, row: int, names: Sequence[str]) -> dict[str, Any]:
        number = bisect_right(self._first_rows, row) - 1
        batch, batch_row = self.batches[number], row - self._first_rows[number]
        return {name: batch.column(name)[batch_row].as_py() for name in names}
