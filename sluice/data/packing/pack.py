"""Packs a source into shards, and continues where an interrupted process ended."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from sluice.base.errors import ContractError, SourceError, StorageError
from sluice.base.file_lock import hold_lock
from sluice.base.files import make_folder, write_atomic
from sluice.base.pluralize import pluralize
from sluice.base.settings import Record
from sluice.data.packing.column_types import arrow_type
from sluice.data.packing.inputs import SourceFiles, StreamFormat, source_name
from sluice.data.packing.records import infer_schema, read_tables
from sluice.data.packing.shard_writer import write_shards
from sluice.data.rows.shards import INDEX_NAME, Shard, ShardIndex, read_index

if TYPE_CHECKING:
    import pyarrow as pa

MAX_SHARD_ROWS = 2**20
"""Default of the maximum number of records of a shard."""

MAX_SHARD_BYTES = 128 * 2**20
"""Default of the size of the values at which a shard is closed [bytes]."""

_LOCK_NAME = ".lock"
_HASH_BYTES = 2**20


class PackProgress(Record):
    """State of a packing that is running."""

    rows: int = Field(description="Number of records in finished shards.")
    shards: int = Field(description="Number of finished shards.")
    bytes_read: int = Field(description="Number of bytes read from the source, decompressed.")
    message: str = Field(
        description="Message about an event, such as a damaged shard; empty if there was no event."
    )


class PackResult(Record):
    """Result of a packing."""

    folder: str = Field(description="Folder of the shards.")
    format: str = Field(description="Format of the source.")
    rows: int = Field(description="Number of records.")
    shards: int = Field(description="Number of shards.")
    num_bytes: int = Field(description="Size of the shards [bytes].")
    columns: dict[str, str] = Field(description="Arrow type of each column, by name.")
    kept_shards: int = Field(description="Number of shards of an earlier packing that were kept.")


def pack(
    source: str,
    folder: Path,
    *,
    environ: Mapping[str, str],
    format: StreamFormat | None = None,
    columns: Mapping[str, str] | None = None,
    max_shard_rows: int = MAX_SHARD_ROWS,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    on_progress: Callable[[PackProgress], None] | None = None,
) -> PackResult:
    """Write the records of a source to shards with random access.

    Finished shards of an interrupted packing are verified and kept. The source is read again, and
    the records of these shards are skipped. The result has the same bytes as without the
    interruption.

    Args:
        source: Path or fsspec URL of a file, or a pattern for several files.
        folder: Folder of the shards; new, empty, or of an earlier packing of the same source.
        environ: Environment variables, for ``${NAME}`` in ``source``.
        format: Format of the source; by default from its name.
        columns: Declared types by column; other types are inferred from the first records.
        max_shard_rows: Maximum number of records of a shard.
        max_shard_bytes: Size of the values at which a shard is closed [bytes].
        on_progress: Receives the progress after every read and every finished shard.

    Raises:
        SourceError: The source cannot be read or parsed, or has no record.
        SettingsError: A declared column does not exist.
        ContractError: The folder contains other files, or another process is packing to it.
        StorageError: The folder cannot be written.

    Cost:
        One pass over the source. The memory holds a few megabytes of records, or the largest
        record.
    """
    folder = folder.absolute()
    make_shard_folder(folder)
    with hold_lock(folder / _LOCK_NAME, wait=False) as has_lock:
        if not has_lock:
            raise ContractError(
                f"Another process is packing to {folder}.", fix="Wait until it has finished."
            )
        for pattern in (f".{INDEX_NAME}.*", ".shard-*.partial"):
            for stale_file in folder.glob(pattern):
                stale_file.unlink()  # a killed process was writing this file
        return _Packing(folder, on_progress).run(
            source, environ, format, columns or {}, max_shard_rows, max_shard_bytes
        )


def make_shard_folder(folder: Path) -> None:
    """Create the folder of shards; refuse a folder with other files.

    Raises:
        ContractError: The path is a file, or a folder with other files.
        StorageError: The folder cannot be created.
    """
    try:
        make_folder(folder)
        names = {path.name for path in folder.iterdir()}
    except OSError as error:
        raise StorageError(
            f"{folder} cannot be used as a folder ({error.strerror}).",
            fix="Name a new folder on a disk with enough space.",
        ) from None
    other_names = {name for name in names if not name.startswith((".", "shard-"))}
    if INDEX_NAME not in names and other_names:
        raise ContractError(
            f"{folder} must be new, empty or of an earlier packing, but contains "
            f"{min(other_names)}.",
            fix="Name another folder.",
        )


class _Packing:
    """State of one packing while it runs."""

    def __init__(self, folder: Path, on_progress: Callable[[PackProgress], None] | None) -> None:
        self._folder, self._on_progress = folder, on_progress
        self._num_rows = self._num_shards = self._num_bytes_read = 0

    def run(
        self,
        source: str,
        environ: Mapping[str, str],
        format: StreamFormat | None,
        columns: Mapping[str, str],
        max_rows: int,
        max_bytes: int,
    ) -> PackResult:
        files = SourceFiles(source, format=format, environ=environ, on_bytes=self._count_bytes)
        index = ShardIndex(
            source=source_name(source),
            format=files.format,
            inputs=files.inputs,
            max_shard_rows=max_rows,
            max_shard_bytes=max_bytes,
            columns={},
            shards=(),
            complete=False,
        )
        earlier_index = read_index(self._folder)
        if earlier_index is not None:
            _require_same_source(earlier_index, index, self._folder)
            _require_types(earlier_index, columns, self._folder)
            intact_shards = self._intact_shards(earlier_index)
            if len(intact_shards) < len(earlier_index.shards) or not earlier_index.complete:
                earlier_index = earlier_index.model_copy(
                    update={"shards": intact_shards, "complete": False}
                )
            index = earlier_index
        num_kept = len(index.shards)
        if not index.complete:
            index = self._write(files, columns, index)
        return PackResult(
            folder=str(self._folder),
            format=index.format,
            rows=index.num_rows,
            shards=len(index.shards),
            num_bytes=sum(shard.num_bytes for shard in index.shards),
            columns=index.columns,
            kept_shards=num_kept,
        )

    def _write(
        self, files: SourceFiles, columns: Mapping[str, str], index: ShardIndex
    ) -> ShardIndex:
        schema = self._schema(files, columns, index)
        type_names = {field.name: str(field.type) for field in schema}
        index = index.model_copy(update={"columns": type_names})
        self._num_rows, self._num_shards = index.num_rows, len(index.shards)
        new_shards = write_shards(
            read_tables(files, schema, skip=index.num_rows),
            schema,
            self._folder,
            first=len(index.shards),
            max_rows=index.max_shard_rows,
            max_bytes=index.max_shard_bytes,
        )
        for shard in new_shards:
            index = index.model_copy(update={"shards": (*index.shards, shard)})
            self._save(index)
            self._num_rows, self._num_shards = index.num_rows, len(index.shards)
            self._report()
        if not index.shards:
            raise SourceError(
                f"{index.source} must have at least one record, but is empty.",
                fix="Check the path, or the export that wrote the file.",
            )
        index = index.model_copy(update={"complete": True})
        self._save(index)
        return index

    def _schema(
        self, files: SourceFiles, columns: Mapping[str, str], index: ShardIndex
    ) -> "pa.Schema":
        import pyarrow as pa

        if not index.shards:
            return infer_schema(files, columns)
        first_path = self._folder / index.shards[0].file
        with pa.memory_map(str(first_path)) as file, pa.ipc.open_file(file) as reader:
            return reader.schema

    def _intact_shards(self, index: ShardIndex) -> tuple[Shard, ...]:
        """Return the shards before the first missing or damaged shard."""
        for number, shard in enumerate(index.shards):
            if not _is_intact(self._folder / shard.file, shard):
                self._report(
                    f"{shard.file} is missing or damaged: packing again from record "
                    f"{sum(s.num_rows for s in index.shards[:number]):,}"
                )
                return index.shards[:number]
        if index.shards:
            self._report(
                f"verified {pluralize(len(index.shards), 'finished shard')} with "
                f"{pluralize(index.num_rows, 'record')}"
            )
        return index.shards

    def _save(self, index: ShardIndex) -> None:
        write_atomic(self._folder / INDEX_NAME, index.model_dump_json(indent=1).encode())

    def _count_bytes(self, num_bytes: int) -> None:
        self._num_bytes_read += num_bytes
        self._report()

    def _report(self, message: str = "") -> None:
        if self._on_progress is not None:
            self._on_progress(
                PackProgress(
                    rows=self._num_rows,
                    shards=self._num_shards,
                    bytes_read=self._num_bytes_read,
                    message=message,
                )
            )


def _is_intact(path: Path, shard: Shard) -> bool:
    try:
        with open(path, "rb") as file:
            sha = hashlib.sha256()
            while chunk := file.read(_HASH_BYTES):
                sha.update(chunk)
            return sha.hexdigest() == shard.sha256
    except OSError:
        return False


def _require_types(earlier_index: ShardIndex, columns: Mapping[str, str], folder: Path) -> None:
    for name, declared in columns.items():
        declared_type = str(arrow_type(declared))
        stored_type = earlier_index.columns.get(name)
        if earlier_index.columns and stored_type != declared_type:
            state = (
                f"the column '{name}' as {stored_type}" if stored_type else f"no column '{name}'"
            )
            raise ContractError(
                f"{folder} has {state}, but this command declares '{name}' as {declared_type}.",
                cause="The finished shards are kept, with their columns and types.",
                fix="Remove the folder, and run the command again.",
            )


def _require_same_source(
    earlier_index: ShardIndex, current_index: ShardIndex, folder: Path
) -> None:
    for field in ("source", "format", "inputs", "max_shard_rows", "max_shard_bytes"):
        old_value, new_value = getattr(earlier_index, field), getattr(current_index, field)
        if old_value != new_value:
            raise ContractError(
                f"{folder} was packed from other files: a name, size or modification time differs."
                if field == "inputs"
                else f"{folder} was packed with {field} = {old_value}, but this command has "
                f"{new_value}.",
                cause="The source or an option differs from the packing that is to be continued.",
                fix="Name another folder, or remove this one.",
            )
