"""Loads raw rows from the configured source: packaged data, files, a database, or ticks."""

import importlib.util
import os
from pathlib import Path

import pandas as pd

from sluice.base.errors import SourceError
from sluice.data.file_source import read_csv, read_parquet
from sluice.data.schema import Schema
from sluice.data.source_settings import (
    CsvSource,
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


def load_rows(source: SourceSettings, *, schema: Schema) -> pd.DataFrame:
    """Read all rows of ``source`` unchanged.

    Columns declared as float or int in ``schema`` are converted to numbers, a datetime index to
    dates, and the index is named as in the schema. No row is dropped, sorted or filled:
    ``validate_schema`` checks the rows. Only ticks are validated here, because bars of invalid
    ticks would look valid.

    Raises:
        SourceError: The file is missing (the most similar name in its folder is suggested), empty,
            or cannot be parsed; the database cannot be reached or rejects the query; a numeric
            column contains text; a date cannot be parsed; the ticks close no bar. The message has
            the column, the first invalid line or row, and the value.
        ContractError: Ticks are unsorted, or a price or size is invalid.
    """
    match source:
        case PackagedBars():
            return _packaged(source, schema)
        case CsvSource():
            return read_csv(source, schema, environ=os.environ)
        case ParquetSource():
            return read_parquet(source, schema, environ=os.environ)
        case SqlSource():
            return _sql(source, schema)
        case TickSource():
            return _bars(source, schema)


def _packaged(source: PackagedBars, schema: Schema) -> pd.DataFrame:
    table = pd.read_csv(_packaged_file(source.name), index_col="Date", parse_dates=["Date"])
    # An index pays no dividends, so its adjusted close equals its close and is omitted.
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
        f"The bars of '{name}' must be in the package arch, and are not.",
        cause="arch is not installed, or a newer version has its data in another folder.",
        fix="Install the locked packages again, or read a file with kind: csv.",
    )


def _sql(source: SqlSource, schema: Schema) -> pd.DataFrame:
    # Imported here: SQLAlchemy takes 0.2 s to import, and only this source needs it.
    from sluice.data.sql_source import read_sql

    return read_sql(source, schema, environ=os.environ)


def _bars(source: TickSource, schema: Schema) -> pd.DataFrame:
    ticks = load_rows(source.ticks, schema=TICK_SCHEMA)
    bars = build_bars(ticks, source.rule)
    if bars.empty:
        raise SourceError(
            f"The ticks must close at least one bar, and {len(ticks)} ticks from {ticks.index[0]} "
            f"to {ticks.index[-1]} of volume {ticks['size'].sum():g} close none under the rule "
            f"{source.rule}.",
            cause="The threshold of the rule is higher than the total of the ticks.",
            fix="Lower the threshold of the rule, or provide more ticks.",
        )
    bars.index.name = schema.index_name or ticks.index.name
    return bars
