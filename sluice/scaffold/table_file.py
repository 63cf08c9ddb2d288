"""Reads the file of a user's table, and guesses the settings of a data source for this file."""

import codecs
import io
import re
from pathlib import Path
from typing import Any

import pandas as pd

from sluice.base.errors import SourceError
from sluice.data import sources
from sluice.data.number_format import find_missing_markers, guess_number_format
from sluice.data.schema import Schema
from sluice.data.source_settings import CsvSource, JsonLinesSource, ParquetSource

FORMATS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
"""Kind of the data source, by the ending of the file name."""

_SEPARATORS = ",;\t|"
"""Characters that may separate the columns of a CSV file."""

_QUOTED = re.compile(rf'(?<![^{_SEPARATORS}\s\ufeff])"[^"]*+(?:""[^"]*+)*+"')
"""Quoted value, which may contain separators and line breaks."""

_SAMPLE_BYTES = 2**20
"""Number of bytes at the beginning of a CSV file from which its format is guessed."""

_SOURCES = {"csv": CsvSource, "parquet": ParquetSource, "jsonl": JsonLinesSource}


def read_table_file(path: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return the rows of a file, and the settings of a data source for it, without the URI.

    The column separator of a CSV file is the character of ``_SEPARATORS`` with the most occurrences
    in the header line, outside of quotes. The number format is the format with which most columns
    are numbers.

    Raises:
        SourceError: The file is missing (the message suggests the nearest name), is empty, cannot
            be parsed, or has a name with an unknown ending.
    """
    kind = FORMATS.get(path.suffix.lower())
    if kind is None:
        raise SourceError(
            f"{path} has no known format: its name must end in {', '.join(FORMATS)}, or it must "
            "be a folder of images.",
            fix="Rename the file, or convert it to CSV or Parquet.",
        )
    settings: dict[str, Any] = {"kind": kind, "index": None}
    if kind == "csv" and path.is_file():
        settings |= _guess_csv_format(path)
    source = _SOURCES[kind](**settings | {"uri": str(path)})
    rows = sources.load_rows(source, schema=Schema(columns=()))
    rows.columns = pd.Index([str(name) for name in rows.columns])
    return rows, settings


def _guess_csv_format(path: Path) -> dict[str, Any]:
    """Return the settings of a CSV source that differ from their defaults."""
    try:
        with path.open("rb") as file:
            content = file.read(_SAMPLE_BYTES)
    except OSError:
        return {}  # the data source reports the error
    encoding = _guess_encoding(content)
    lines = content.decode(encoding, "replace").splitlines(keepends=True)
    if len(content) == _SAMPLE_BYTES:
        lines = lines[:-1]  # the last line may be incomplete
        num_quotes = sum(line.count('"') for line in lines)
        while num_quotes % 2:  # the sample ends inside a quoted value
            num_quotes -= lines.pop().count('"')
    header = next(iter(_QUOTED.sub("", "".join(lines)).splitlines()), "")
    separator = max(_SEPARATORS, key=header.count)
    guesses: dict[str, Any] = {
        "separator": separator,
        "encoding": encoding,
        "skip_spaces": header.count(f"{separator} ") == header.count(separator) > 0,
    }
    try:
        text_frame = pd.read_csv(
            io.StringIO("".join(lines)),
            sep=separator,
            skipinitialspace=guesses["skip_spaces"],
            dtype="str",
        )
    except (pd.errors.ParserError, ValueError):
        pass  # the data source reports the error
    else:
        decimal, thousands = guess_number_format(text_frame)
        missing = find_missing_markers(text_frame, decimal=decimal, thousands=thousands)
        guesses |= {"decimal": decimal, "thousands": thousands, "missing": missing}
    defaults = CsvSource(uri=str(path))
    return {name: value for name, value in guesses.items() if value != getattr(defaults, name)}


def _guess_encoding(content: bytes) -> str:
    """Return 'utf-16' for a UTF-16 byte order mark, 'utf-8' for valid UTF-8, otherwise 'cp1252'."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(content)
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8"
