"""Loads raw rows from the configured source: a file, a database, an asset, or packaged data."""

import importlib.util
import os
from pathlib import Path

import pandas as pd

from sluice.base.errors import SourceError
from sluice.base.pluralize import pluralize
from sluice.data.asset_rows import rows_of_asset
from sluice.data.file_source import raw_rows_of_frame, read_csv, read_json_lines, read_parquet
from sluice.data.schema import Schema
from sluice.data.source_settings import (
    AssetSource,
    CsvSource,
    JsonLinesSource,
    PackagedBars,
    ParquetSource,
    SourceSettings,
    SqlSource,
    TickSource,
)
from sluice.data.tick_bars import TICK_SCHEMA, build_bars

_BAR_COLUMNS = {
    "Open": "open",
    "High": "high",
    "Low": "low",
    "Close": "close",
    "Volume": "volume",
}
"""Columns of the packaged bars, with their names in raw rows."""


def load_rows(source: SourceSettings, *, schema: Schema) -> pd.DataFrame:
    """Read all rows of ``source``, and aggregate ticks to bars.

    Columns declared as float or int in ``schema`` are converted to numbers, a datetime index is
    converted to dates, and the index gets the name in the schema. Otherwise, no row is dropped,
    sorted or filled, and values are not validated; ``validate_schema`` does that later. Only ticks
    are validated here, because bars of invalid ticks would look valid.

    Raises:
        SourceError: The file is missing (the most similar name in its folder is suggested), empty,
            or cannot be parsed; the database cannot be reached or rejects the query; a numeric
            column contains text; a date cannot be parsed; the ticks close no bar. The message has
            the column, the first invalid line or row, and the value.
        ContractError: Ticks are unsorted, or a price or size is invalid.
    """
    match source:
        case PackagedBars():
            return _read_packaged(source, schema)
        case CsvSource():
            return read_csv(source, schema, environ=os.environ)
        case ParquetSource():
            return read_parquet(source, schema, environ=os.environ)
        case JsonLinesSource():
            return read_json_lines(source, schema, environ=os.environ)
        case AssetSource():
            return raw_rows_of_frame(rows_of_asset(source.key), source, schema)
        case SqlSource():
            return _read_sql(source, schema)
        case TickSource():
            return _read_bars(source, schema)


def _read_packaged(source: PackagedBars, schema: Schema) -> pd.DataFrame:
    table = pd.read_csv(_packaged_file(source.name), index_col="Date", parse_dates=["Date"])
    # The adjusted close is omitted: an index pays no dividends, so it equals the close.
    rows = table[list(_BAR_COLUMNS)].rename(columns=_BAR_COLUMNS)
    rows.index.name = schema.index_name
    kinds = {column.name: column.kind for column in schema.columns}
    return rows.astype({name: "float64" for name in rows.columns if kinds.get(name) == "float"})


def _packaged_file(name: str) -> Path:
    """Return the file in the arch package without importing it, which takes over a second."""
    spec = importlib.util.find_spec("arch")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        file = Path(folder) / "data" / name / f"{name}.csv.gz"
        if file.is_file():
            return file
    raise SourceError(
        f"The package arch must contain the bars of '{name}', but it does not.",
        cause="arch is not installed, or a newer version has its data in another folder.",
        fix="Install the locked packages again, or read a file with kind: csv.",
    )


def _read_sql(source: SqlSource, schema: Schema) -> pd.DataFrame:
    # Imported here, because SQLAlchemy takes 0.2 s to import and only this source needs it.
    from sluice.data.sql_source import read_sql

    return read_sql(source, schema, environ=os.environ)


def _read_bars(source: TickSource, schema: Schema) -> pd.DataFrame:
    ticks = load_rows(source.ticks, schema=TICK_SCHEMA)
    bars = build_bars(ticks, source.rule)
    if bars.empty:
        raise SourceError(
            "The ticks must close at least one bar, but none closes with the rule "
            f"{source.rule} in {pluralize(len(ticks), 'tick')} from {ticks.index[0]} to "
            f"{ticks.index[-1]} with volume {ticks['size'].sum():g}.",
            cause="The threshold of the rule is higher than the total of the ticks. A time bar "
            "closes only if there is a later tick.",
            fix="Lower the threshold of the rule, or provide more ticks.",
        )
    bars.index.name = schema.index_name or ticks.index.name
    return bars
