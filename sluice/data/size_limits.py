"""Estimates the size of a file's rows in memory before they are loaded.

A Parquet file of 2 MB can expand to gigabytes, because it is compressed and stores repeated values
only once. A small CSV file can expand too, because every short line gets an empty cell for each
column of the header.
"""

import io

import pandas as pd

from sluice.base.errors import SourceError
from sluice.data.source_settings import CsvSource, JsonLinesSource, ParquetSource

_CELL_BYTES = 8
"""Size of a number or of a reference to a text [bytes]."""

_NAME_BYTES = 128
"""Size of a column name with its overhead in pandas [bytes]."""

_OBJECT_BYTES = 64
"""Overhead of a Python object, such as a decimal number [bytes]."""

_BATCH_ROWS = 1_024
"""Number of rows of text that are decoded at a time, if each distinct text is decoded only once."""

_PLAIN_BATCH_ROWS = 64
"""Number of rows of text that are decoded at a time, if the text of each row is decoded
separately."""

_DICTIONARY_ENCODINGS = {"PLAIN_DICTIONARY", "RLE_DICTIONARY"}
"""Encodings that store each distinct text once; pyarrow decodes only these into a dictionary."""


def require_bounded_csv(content: bytes, source: CsvSource) -> None:
    """Raise an error for a CSV file whose table would be larger than ``source.max_bytes``.

    Raises:
        SourceError: The table would be too large; the message has size, limit and setting.
        ValueError: The header cannot be parsed.
    """
    num_lines = max(content.count(b"\n"), content.count(b"\r")) + 1
    header_end = content.find(b"\n")
    separator = source.separator.encode()
    num_names = content.count(separator, 0, None if header_end < 0 else header_end) + 1
    _require_size(num_names * _NAME_BYTES, source)
    # The header is read like a data row, because pandas takes half a minute to make 20,000 equal
    # column names unique.
    header = pd.read_csv(
        io.BytesIO(content), sep=source.separator, header=None, nrows=1, dtype="str"
    )
    num_cells = max(header.shape[1] * num_lines, content.count(separator) + num_lines)
    _require_size(num_cells * _CELL_BYTES, source)


def require_bounded_parquet(content: bytes, source: ParquetSource) -> None:
    """Raise an error for a Parquet file whose table would be larger than ``source.max_bytes``.

    The size of columns with a fixed width is computed from the footer of the file. The footer does
    not contain the lengths of texts, so the texts are decoded in small batches and counted.
    Repeated texts are decoded once if possible.

    Raises:
        SourceError: The table would be too large; the message has size, limit and setting.
        pyarrow.ArrowInvalid, OSError: The file is not a Parquet file, or is incomplete.

    Cost:
        One more pass over the columns of text.
    """
    import pyarrow.parquet as pq

    metadata = pq.ParquetFile(io.BytesIO(content)).metadata
    num_bytes, text_columns, plain_columns = 0, set(), set()
    for group in range(metadata.num_row_groups):
        for column in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(column)
            num_bytes += chunk.num_values * _CELL_BYTES
            if chunk.physical_type == "BYTE_ARRAY":
                text_columns.add(chunk.path_in_schema)
                if not _DICTIONARY_ENCODINGS & set(chunk.encodings):
                    plain_columns.add(chunk.path_in_schema)  # without a dictionary encoding
                num_bytes += chunk.total_uncompressed_size
            elif chunk.physical_type == "FIXED_LEN_BYTE_ARRAY":
                width = metadata.schema.column(column).length + _OBJECT_BYTES
                num_bytes += chunk.num_values * width
    _require_size(num_bytes, source)
    if text_columns:
        _require_bounded_texts(content, text_columns, plain_columns, source)


def too_large_error(source: CsvSource | ParquetSource | JsonLinesSource, size: str) -> SourceError:
    """Return the error for a file that exceeds its limit."""
    # For JSON lines, only the size of the file is limited: its rows are about as large.
    has_file_limit_only = isinstance(source, JsonLinesSource)
    return SourceError(
        f"{source.uri} must be at most max_bytes = {source.max_bytes:,} bytes"
        f"{'' if has_file_limit_only else ', as a file and as rows in memory'}, got {size}.",
        cause=""
        if has_file_limit_only
        else "The file is large, or it is small but its rows are far larger in memory.",
        fix="Check the origin of the file, then raise 'max_bytes' in the source's settings.",
    )


def _require_bounded_texts(
    content: bytes, text_columns: set[str], plain_columns: set[str], source: ParquetSource
) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    file = pq.ParquetFile(io.BytesIO(content), read_dictionary=sorted(text_columns - plain_columns))
    num_rows = _PLAIN_BATCH_ROWS if plain_columns else _BATCH_ROWS
    num_bytes = 0
    for batch in file.iter_batches(batch_size=num_rows, columns=sorted(text_columns)):
        for column in batch.columns:
            if pa.types.is_dictionary(column.type):
                lengths = pc.binary_length(column.dictionary).take(column.indices)
                num_bytes += pc.sum(lengths).as_py() or 0
            else:
                num_bytes += column.nbytes
        _require_size(num_bytes, source)


def _require_size(num_bytes: int, source: CsvSource | ParquetSource) -> None:
    if num_bytes > source.max_bytes:
        raise too_large_error(source, f"at least {num_bytes:,} bytes of rows")
