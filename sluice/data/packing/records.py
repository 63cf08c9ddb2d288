"""Parses the files of a source to Arrow tables, a few thousand records at a time."""

import json
import tarfile
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sluice.base.errors import SourceError
from sluice.data.packing.column_types import apply_declared_types, infer_columns, to_array
from sluice.data.packing.inputs import SourceFiles

if TYPE_CHECKING:
    import pyarrow as pa

_SAMPLE_RECORDS, _SAMPLE_BYTES = 10_000, 16 * 2**20
"""The types of columns are inferred from the first JSON records, up to this number of records or
this total size [bytes], whichever is reached first."""

_TABLE_RECORDS, _TABLE_BYTES = 1_024, 2**20
"""The collected records become a table at this number of records or this total size [bytes]."""

_MAX_LINE_BYTES = 256 * 2**20
"""A line of at least this length is refused [bytes], because a file without line breaks would fill
the memory."""

_CSV_BLOCK_BYTES = 4 * 2**20
"""Size of the blocks in which a CSV file is parsed. Types are inferred from the first block."""


def infer_schema(files: SourceFiles, declared_types: Mapping[str, str]) -> "pa.Schema":
    """Return names and types of the columns, from the first records of the source.

    Args:
        files: Files of the source.
        declared_types: Types that the user declared, by column.

    Raises:
        SourceError: A file cannot be read or parsed, or a column has values of several types.
        SettingsError: A declared column does not exist.
    """
    import pyarrow as pa

    match files.format:
        case "tar":
            schema = pa.schema([("path", pa.string()), ("content", pa.binary())])
        case "csv":
            with files.open(0) as file, _csv_reader(file, files.name(0), None) as reader:
                schema = reader.schema
        case "parquet":
            with files.open(0) as file:
                schema = _parquet_file(file, files.name(0)).schema_arrow
        case "jsonl":
            sample: list[dict[str, Any]] = []
            num_sample_bytes = 0
            for record, num_bytes, _ in _json_records(files):
                sample.append(record)
                num_sample_bytes += num_bytes
                if len(sample) >= _SAMPLE_RECORDS or num_sample_bytes >= _SAMPLE_BYTES:
                    break
            undeclared_values = [
                {key: value for key, value in record.items() if key not in declared_types}
                for record in sample
            ]
            columns = dict.fromkeys(key for record in sample for key in record)
            inferred_schema = infer_columns(undeclared_values, files.name(0))
            schema = pa.schema(
                [
                    (
                        name,
                        pa.null() if name in declared_types else inferred_schema.field(name).type,
                    )
                    for name in columns
                ]
            )
    return apply_declared_types(schema, declared_types)


def read_tables(files: SourceFiles, schema: "pa.Schema", *, skip: int) -> "Iterator[pa.Table]":
    """Yield all records from number ``skip`` on, as tables of ``schema``.

    The tables of two calls may differ in length; only the order of the records is fixed.

    Raises:
        SourceError: A file cannot be read or parsed, or a record does not fit the schema. The
            message names the file and, where it is known, the line.
    """
    match files.format:
        case "jsonl":
            yield from _json_tables(files, schema, skip)
        case "tar":
            yield from _tar_tables(files, schema, skip)
        case "csv":
            yield from _skip_rows(_csv_tables(files, schema), skip)
        case "parquet":
            yield from _parquet_tables(files, schema, skip)


def _json_records(files: SourceFiles) -> Iterator[tuple[dict[str, Any], int, str]]:
    """Yield every record, the length of its line [bytes], and its location for messages."""
    for index in range(len(files)):
        with files.open(index) as file:
            number = 0
            while line := file.readline(_MAX_LINE_BYTES):
                number += 1
                if line.isspace():
                    continue
                location = f"line {number} of {files.name(index)}"
                if len(line) == _MAX_LINE_BYTES:
                    raise _format_error(location, f"it has {_MAX_LINE_BYTES:,} bytes or more")
                try:
                    record = json.loads(line, parse_constant=_refuse_constant)
                except (ValueError, RecursionError) as error:
                    raise _format_error(location, str(error)) from None
                if not isinstance(record, dict):
                    raise _format_error(
                        location, f"it is not an object but {type(record).__name__}"
                    )
                yield record, len(line), location


def _json_tables(files: SourceFiles, schema: "pa.Schema", skip: int) -> "Iterator[pa.Table]":
    names = set(schema.names)
    records: list[dict[str, Any]] = []
    locations: list[str] = []
    num_record_bytes = 0
    for number, (record, num_bytes, location) in enumerate(_json_records(files)):
        if number < skip:
            continue
        if not record.keys() <= names:
            unknown_key = next(key for key in record if key not in names)
            raise SourceError(
                f"The record at {location} has the key '{unknown_key}', which is not a column.",
                cause="The columns are the keys of the first records, up to "
                f"{_SAMPLE_RECORDS:,} records or {_SAMPLE_BYTES // 2**20} MB.",
                fix="Add the key to the first record, with the value null. If its values are not "
                "texts, declare their type, too: --column 'NAME=TYPE'.",
            )
        records.append(record)
        locations.append(location)
        num_record_bytes += num_bytes
        if len(records) >= _TABLE_RECORDS or num_record_bytes >= _TABLE_BYTES:
            yield _make_table(records, locations, schema)
            records, locations, num_record_bytes = [], [], 0
    if records:
        yield _make_table(records, locations, schema)


def _make_table(
    records: list[dict[str, Any]], locations: list[str], schema: "pa.Schema"
) -> "pa.Table":
    import pyarrow as pa

    try:
        columns = [to_array([r.get(field.name) for r in records], field.type) for field in schema]
        return pa.Table.from_arrays(columns, schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        for record, location in zip(records, locations, strict=True):
            for field in schema:
                try:
                    to_array([record.get(field.name)], field.type)
                except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
                    raise _type_error(field, f"{error} at {location}") from None
        raise


def _tar_tables(files: SourceFiles, schema: "pa.Schema", skip: int) -> "Iterator[pa.Table]":
    import pyarrow as pa

    names: list[str] = []
    contents: list[bytes] = []
    num_content_bytes = 0
    for number, (name, content) in enumerate(_tar_members(files, skip)):
        if number < skip:
            continue
        names.append(name.encode("utf-8", "backslashreplace").decode())
        contents.append(content)
        num_content_bytes += len(content)
        if len(names) >= _TABLE_RECORDS or num_content_bytes >= _TABLE_BYTES:
            yield pa.table([names, contents], schema=schema)
            names, contents, num_content_bytes = [], [], 0
    if names:
        yield pa.table([names, contents], schema=schema)


def _tar_members(files: SourceFiles, skip: int) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of every file; the content of the first ``skip`` files is empty."""
    number = 0
    for index in range(len(files)):
        try:
            with (
                files.open(index) as file,
                tarfile.open(fileobj=file, mode="r|*") as archive,
            ):
                while (member := archive.next()) is not None:
                    # tarfile keeps a list of all members, which would grow with the archive.
                    archive.members.clear()  # type: ignore[attr-defined]
                    if member.islnk() or member.issym():
                        raise _link_error(files.name(index), member.name)
                    if not member.isfile():
                        continue
                    content = archive.extractfile(member) if number >= skip else None
                    number += 1
                    yield member.name, content.read() if content is not None else b""
        except (tarfile.TarError, EOFError) as error:
            raise _format_error(files.name(index), str(error)) from None


def _csv_tables(files: SourceFiles, schema: "pa.Schema") -> "Iterator[pa.Table]":
    import pyarrow as pa

    for index in range(len(files)):
        name = files.name(index)
        with files.open(index) as file, _csv_reader(file, name, schema) as reader:
            if reader.schema.names != schema.names:
                raise _columns_error(name, reader.schema.names, schema.names)
            try:
                for batch in reader:
                    yield pa.Table.from_batches([batch])
            except pa.ArrowInvalid as error:
                raise _csv_error(name, error) from None


def _csv_reader(file: Any, name: str, schema: "pa.Schema | None") -> Any:
    import pyarrow as pa
    from pyarrow import csv

    try:
        return csv.open_csv(
            file,
            # With one thread, error messages of Arrow contain the number of the row.
            read_options=csv.ReadOptions(block_size=_CSV_BLOCK_BYTES, use_threads=False),
            parse_options=csv.ParseOptions(newlines_in_values=True),
            convert_options=csv.ConvertOptions(column_types=schema),
        )
    except pa.ArrowInvalid as error:
        raise _csv_error(name, error) from None


def _parquet_tables(files: SourceFiles, schema: "pa.Schema", skip: int) -> "Iterator[pa.Table]":
    import pyarrow as pa

    for index in range(len(files)):
        name = files.name(index)
        with files.open(index) as file:
            parquet = _parquet_file(file, name)
            if parquet.schema_arrow.names != schema.names:
                raise _columns_error(name, parquet.schema_arrow.names, schema.names)
            group_rows = [
                parquet.metadata.row_group(n).num_rows for n in range(parquet.num_row_groups)
            ]
            first_group = 0
            while first_group < len(group_rows) and group_rows[first_group] <= skip:
                skip -= group_rows[first_group]
                first_group += 1
            try:
                batches = parquet.iter_batches(
                    _TABLE_RECORDS, row_groups=list(range(first_group, len(group_rows)))
                )
                for batch in batches:
                    table = pa.Table.from_batches([batch]).slice(skip)
                    skip -= min(skip, batch.num_rows)
                    if table.num_rows:
                        yield table.cast(schema)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
                raise _format_error(name, str(error)) from None


def _parquet_file(file: Any, name: str) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(file, pre_buffer=False, buffer_size=2**20)
    except (pa.ArrowInvalid, OSError) as error:
        raise _format_error(name, str(error)) from None


def _skip_rows(tables: "Iterator[pa.Table]", skip: int) -> "Iterator[pa.Table]":
    for table in tables:
        remaining = table.slice(skip)
        skip -= min(skip, table.num_rows)
        if remaining.num_rows:
            yield remaining


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number; write null")


def _format_error(location: str, problem: str) -> SourceError:
    return SourceError(
        f"{location} cannot be parsed: {problem}.",
        cause="The file is incomplete, or has a different format.",
        fix="Repair the file, or pass its format with --format. Then remove the folder of the "
        "shards and run the command again: shards of a changed file are not continued.",
    )


def _link_error(archive: str, name: str) -> SourceError:
    return SourceError(
        f"{archive} must contain files only, but '{name}' is a link.",
        fix="Write the archive with the files themselves: tar --dereference --hard-dereference.",
    )


def _csv_error(name: str, error: Exception) -> SourceError:
    return SourceError(
        f"{name} cannot be parsed as CSV: {str(error).rstrip('.')}.",
        cause="A line has a different number of values, or a value does not fit the type of its "
        f"column. Types are inferred from the first {_CSV_BLOCK_BYTES // 2**20} MB.",
        fix="Repair the line, or declare the type of the column: --column 'NAME=float64'.",
    )


def _type_error(field: "pa.Field", problem: str) -> SourceError:
    return SourceError(
        f"The column '{field.name}' must be {field.type}: {problem}.",
        cause="The type is inferred from the first records, unless --column declares it.",
        fix="Correct the record. If the column starts with integers and contains other numbers, "
        f"declare its type: --column '{field.name}=float64'.",
    )


def _columns_error(name: str, columns: list[str], required_columns: list[str]) -> SourceError:
    return SourceError(
        f"{name} must have the columns {', '.join(required_columns)} of the first file, got "
        f"{', '.join(columns)}.",
        fix="Pack files with other columns to another folder.",
    )
