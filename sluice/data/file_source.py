"""Reads the rows of a CSV, Parquet or JSON lines file from any fsspec path."""

import csv
import io
import json
import warnings
from collections.abc import Mapping

import pandas as pd

from sluice.base.errors import SourceError
from sluice.base.extras import missing_filesystem_advice
from sluice.data.number_format import convert_grouped_numbers
from sluice.data.parquet_folder import find_parquet_folder, read_parquet_folder
from sluice.data.raw_rows import apply_schema, row_location
from sluice.data.schema import Schema
from sluice.data.size_limits import require_bounded_csv, require_bounded_parquet, too_large_error
from sluice.data.source_settings import AssetSource, CsvSource, JsonLinesSource, ParquetSource
from sluice.data.source_url import hide_secrets, resolve
from sluice.data.validation import nearest_name

_CHUNK_BYTES = 8 * 1024**2
"""Number of bytes that are read at a time."""


def read_csv(source: CsvSource, schema: Schema, *, environ: Mapping[str, str]) -> pd.DataFrame:
    """Read a CSV file; error messages name the line.

    Raises:
        SourceError: See ``sluice.data.sources.load_rows``.
    """
    content = _read(source, environ)
    try:
        if source.encoding.lower() not in ("utf-8", "utf8"):
            content = content.decode(source.encoding).encode()
        require_bounded_csv(content, source)
        rows = _parse_csv(content, source)
    except SourceError:
        raise
    except pd.errors.EmptyDataError:
        raise _empty_file_error(source.uri) from None
    except (pd.errors.ParserError, UnicodeDecodeError, ValueError) as error:
        raise SourceError(
            f"{source.uri} cannot be parsed as CSV: {str(error).strip()}.",
            cause="The lines have different numbers of values, or the file has another separator "
            f"or another encoding than {source.encoding}.",
            fix="Repair the line, set 'separator' or 'encoding', or use kind: parquet.",
        ) from None
    if rows.empty:
        raise _empty_file_error(source.uri)
    if source.thousands is not None:
        rows = convert_grouped_numbers(
            rows, decimal=source.decimal, thousands=source.thousands, text_column=source.index
        )
    return apply_schema(
        rows, source, schema, origin=source.uri, where=_CsvLocation(content, source)
    )


def _parse_csv(content: bytes, source: CsvSource) -> pd.DataFrame:
    """Return the rows; each column has one type.

    To save memory, pandas infers the type of a column separately for each part of a long file. If
    the types differ, the file is read again as one part. Otherwise, a category such as 01 would be
    1 in one part and 01 in another.
    """

    def read(*, low_memory: bool) -> pd.DataFrame:
        return pd.read_csv(
            io.BytesIO(content),
            sep=source.separator,
            decimal=source.decimal,
            na_values=list(source.missing),
            skipinitialspace=source.skip_spaces,
            dtype={} if source.index is None else {source.index: "str"},
            low_memory=low_memory,
        )

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.DtypeWarning)
            return read(low_memory=True)
    except pd.errors.DtypeWarning:
        return read(low_memory=False)


def read_parquet(
    source: ParquetSource, schema: Schema, *, environ: Mapping[str, str]
) -> pd.DataFrame:
    """Read a Parquet file, or all files of a folder; error messages name the file or the row.

    Raises:
        SourceError: See ``sluice.data.sources.load_rows``.
    """
    import pyarrow as pa

    folder = find_parquet_folder(source, environ=environ)
    if folder is not None:
        return raw_rows_of_frame(read_parquet_folder(folder, source), source, schema)
    content = _read(source, environ)
    try:
        require_bounded_parquet(content, source)
        rows = pd.read_parquet(io.BytesIO(content), engine="pyarrow")
    except (pa.ArrowInvalid, OSError) as error:
        raise SourceError(
            f"{source.uri} cannot be read as Parquet: {error}.",
            cause="The file is incomplete or has another format.",
            fix="Write the file again, or use kind: csv.",
        ) from None
    return raw_rows_of_frame(rows, source, schema)


def read_json_lines(
    source: JsonLinesSource, schema: Schema, *, environ: Mapping[str, str]
) -> pd.DataFrame:
    """Read a file with one JSON object per line; error messages name the line.

    A key that an object does not have is a missing value.

    Raises:
        SourceError: See ``sluice.data.sources.load_rows``.
    """
    records = []
    for number, line in enumerate(_read(source, environ).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _json_error(source.uri, number, str(error)) from None
        if not isinstance(record, dict):
            raise _json_error(
                source.uri, number, f"it is not an object but {type(record).__name__}"
            )
        records.append(record)
    return raw_rows_of_frame(pd.DataFrame.from_records(records), source, schema)


def raw_rows_of_frame(
    rows: pd.DataFrame, source: ParquetSource | JsonLinesSource | AssetSource, schema: Schema
) -> pd.DataFrame:
    """Return a data frame as raw rows; ``source.index`` may name its index or one of its columns.

    Without ``source.index``, a named index of the data frame becomes a column.

    Raises:
        SourceError: The frame is empty; otherwise see ``sluice.data.sources.load_rows``.
    """
    stored_names = [
        name for name in rows.index.names if name is not None and name not in rows.columns
    ]
    if stored_names and (source.index is None or source.index in stored_names):
        rows = rows.reset_index()
    if rows.empty and isinstance(source, AssetSource):
        raise SourceError(
            f"The {source.uri} must return at least one row, but its data frame is empty.",
            cause="No row passes the filters of the asset.",
            fix="Correct the asset and materialize it again.",
        )
    if rows.empty:
        raise _empty_file_error(source.uri)
    return apply_schema(rows, source, schema, origin=source.uri, where=row_location)


def suggest_name(uri: str) -> str:
    """Return the end of a message about a missing file: a similar name, or a missing folder."""
    import fsspec

    filesystem, path = fsspec.core.url_to_fs(uri)
    folder, _, name = path.rpartition("/")
    try:
        names = [str(entry).rpartition("/")[2] for entry in filesystem.ls(folder, detail=False)]
    except (OSError, ValueError):
        return f" The folder {folder or '/'} does not exist or cannot be listed."
    nearest = nearest_name(name, names)
    return f" Did you mean '{nearest}'?" if nearest else ""


class _CsvLocation:
    """Returns the number of the first line of a row of a CSV file.

    Blank lines, which pandas skips, and line breaks in quoted values count as lines.
    """

    def __init__(self, content: bytes, source: CsvSource) -> None:
        self._content, self._source = content, source

    def __call__(self, row: int) -> str:
        text = io.StringIO(self._content.decode("utf-8", errors="replace"), newline="")
        records = csv.reader(
            text, delimiter=self._source.separator, skipinitialspace=self._source.skip_spaces
        )
        num_records, first_line = 0, 1
        try:
            for values in records:
                num_records += any(value.strip() for value in values) or len(values) > 1
                if num_records == row + 2:  # the header is the first record
                    return f"line {first_line}"
                first_line = records.line_num + 1
        except csv.Error:  # such as a value that is longer than the limit of the csv module
            pass
        return row_location(row)


def _read(source: CsvSource | ParquetSource | JsonLinesSource, environ: Mapping[str, str]) -> bytes:
    """Return the content of the file; more than ``max_bytes`` bytes are an error.

    Error messages do not contain the values of environment variables.
    """
    import fsspec

    uri, resolved = source.uri, resolve(source.uri, environ)
    try:
        with fsspec.open(resolved, "rb") as file:
            # The file is read in chunks, because the length of a stream may be unknown.
            chunks, num_bytes = [], 0
            while chunk := file.read(_CHUNK_BYTES):
                chunks.append(chunk)
                num_bytes += len(chunk)
                if num_bytes > source.max_bytes:
                    raise too_large_error(source, "a larger file")
    except FileNotFoundError:
        suggestion = hide_secrets(suggest_name(resolved), uri, environ)
        raise SourceError(
            f"There is no file {uri}.{suggestion}", fix="Correct 'uri', or create the file."
        ) from None
    except SourceError:
        raise
    except (ImportError, ValueError) as error:
        raise SourceError(
            f"{uri} cannot be opened: {hide_secrets(str(error), uri, environ)}.",
            cause="The scheme before '://' is unknown, or its fsspec package is not installed.",
            fix=missing_filesystem_advice(uri)
            or "Correct 'uri', or install the package named above.",
        ) from None
    except Exception as error:  # file systems of fsspec raise errors of their own classes
        # Their messages contain the URL with its secrets.
        message = str(getattr(error, "strerror", None) or error)
        raise SourceError(
            f"{uri} cannot be read ({hide_secrets(message, uri, environ)}).",
            fix="Check that 'uri' is a file, and that this user has permission to read it.",
        ) from None
    content = b"".join(chunks)
    if not content.strip():
        raise _empty_file_error(uri)
    return content


def _json_error(uri: str, line: int, reason: str) -> SourceError:
    return SourceError(
        f"Line {line} of {uri} must be a JSON object: {reason}.",
        cause="The file has another format, or the line is incomplete.",
        fix="Write one object per line, or use kind: csv or kind: parquet.",
    )


def _empty_file_error(uri: str) -> SourceError:
    return SourceError(
        f"{uri} must contain at least one row, but it is empty.",
        cause="The export that wrote the file found no rows, or was truncated.",
        fix="Write the file again, or set 'uri' to another file.",
    )
