"""Raw rows from wherever the settings say: packaged, files, a database, or bars of ticks."""

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
    """Read every row of ``source``, as it stands there.

    Columns that ``schema`` declares as float or int become numbers, a datetime index becomes
    dates, and the index takes the schema's name. Nothing is dropped, sorted or filled: whether
    the rows are good is for ``validate_schema`` to say. Only ticks are judged here, because bars
    of bad ticks would look good.

    Raises:
        SourceError: The file is missing (the nearest name in its folder is offered), empty, or
            cannot be parsed; the database cannot be reached or refuses the query; text stands in a
            number's column; a date cannot be read; the ticks close no bar. The message has the
            column, the first bad line or row, and the value.
        ContractError: Ticks are unsorted, or a price or size cannot be one.
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
    # An index pays no dividends, so its adjusted close is its close and says nothing new.
    rows = table[list(_BAR_COLUMNS)].rename(columns=_BAR_COLUMNS)
    rows.index.name = schema.index_name
    kinds = {column.name: column.kind for column in schema.columns}
    return rows.astype({name: "float64" for name in rows.columns if kinds.get(name) == "float"})


def _packaged_file(name: str) -> Path:
    """Return the file within the arch package, which takes over a second to import."""
    spec = importlib.util.find_spec("arch")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        file = Path(folder) / "data" / name / f"{name}.csv.gz"
        if file.is_file():
            return file
    raise SourceError(
        f"The bars of '{name}' must come with the package arch, and do not.",
        cause="arch is missing, or ships its data in another place since a newer version.",
        fix="Set up again with the locked packages, or name a file with kind: csv.",
    )


def _sql(source: SqlSource, schema: Schema) -> pd.DataFrame:
    # Imported here: SQLAlchemy takes 0.2 s, and only this source needs it.
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
            cause="The rule asks for more than the ticks hold.",
            fix="Lower the rule's threshold, or give more ticks.",
        )
    bars.index.name = schema.index_name or ticks.index.name
    return bars
