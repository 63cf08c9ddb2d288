"""Reads the file given to ``sluice init``, and derives the settings of a source that reads it."""

import gzip
from pathlib import Path
from typing import Any

import pandas as pd

from sluice.base.errors import SourceError
from sluice.data import sources
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
"""Kind of the source by the ending of the file name."""

_SEPARATORS = ",;\t|"
_SOURCES = {"csv": CsvSource, "parquet": ParquetSource, "jsonl": JsonLinesSource}


def read_table_file(path: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return the rows of a file, and the settings of a source that reads it, without its URI.

    The separator of a CSV file is the one that occurs most often in the header line.

    Raises:
        SourceError: The file is missing (the nearest name is suggested), empty, or cannot be
            parsed, or its name has an unknown ending.
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
        header = _first_line(path)
        separator = max(_SEPARATORS, key=header.count)
        if header.count(separator) and separator != ",":
            settings["separator"] = separator
    source = _SOURCES[kind](**settings | {"uri": str(path)})
    rows = sources.load_rows(source, schema=Schema(columns=()))
    rows.columns = pd.Index([str(name) for name in rows.columns])
    return rows, settings


def _first_line(path: Path) -> str:
    with path.open("rb") as raw:
        is_gzip = raw.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path, "rb") if is_gzip else path.open("rb") as file:
            return str(file.readline(2**20).decode("utf-8", "replace"))
    except OSError:
        return ""
