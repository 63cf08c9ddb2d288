"""Where raw rows come from: a packaged data set, or a CSV or Parquet file on any fsspec path."""

import io
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import Field

from sluice.data.schema import Schema
from sluice.data.validation import nearest_name
from sluice.errors import SourceError
from sluice.settings import Settings

_BAR_COLUMNS = {
    "Open": "open",
    "High": "high",
    "Low": "low",
    "Close": "close",
    "Volume": "volume",
}


class PackagedBars(Settings):
    """Real daily bars shipped by the ``arch`` package, 1999 to 2018; needs no network."""

    kind: Literal["packaged"] = "packaged"
    name: Literal["sp500", "nasdaq"] = Field("sp500", description="Index whose bars are read.")


class CsvSource(Settings):
    """A comma-separated file with a header line."""

    kind: Literal["csv"] = "csv"
    uri: str = Field(min_length=1, description="A path, or any URL that fsspec reads.")
    index: str = Field("date", description="Column of the file that labels its rows.")
    rename: dict[str, str] = Field(
        default_factory=dict, description="New name by name in the file, for columns."
    )
    separator: str = Field(",", min_length=1, max_length=1, description="Between two values.")
    date_format: str | None = Field(
        None,
        description="strptime format of the dates, such as '%d/%m/%Y'; ISO 8601 when not given, "
        "because other orders of day and month cannot be told apart.",
    )


class ParquetSource(Settings):
    """A Parquet file."""

    kind: Literal["parquet"] = "parquet"
    uri: str = Field(min_length=1, description="A path, or any URL that fsspec reads.")
    index: str = Field("date", description="Column or stored index that labels the rows.")
    rename: dict[str, str] = Field(
        default_factory=dict, description="New name by name in the file, for columns."
    )


SourceSettings = Annotated[PackagedBars | CsvSource | ParquetSource, Field(discriminator="kind")]


def load_rows(source: SourceSettings, *, schema: Schema) -> pd.DataFrame:
    """Read every row of ``source``, as it stands there.

    Columns that ``schema`` declares as float or int become numbers, a datetime index becomes
    dates, and the index takes the schema's name. Nothing is dropped, sorted or filled: whether
    the rows are good is for ``validate_schema`` to say.

    Raises:
        SourceError: The file is missing (the nearest name in its folder is offered), empty, or
            cannot be parsed; text stands in a number's column; a date cannot be read. The message
            has the column, the first bad line or row, and the value.
    """
    match source:
        case PackagedBars():
            return _packaged(source, schema)
        case CsvSource():
            return _csv(source, schema)
        case ParquetSource():
            return _parquet(source, schema)


def _packaged(source: PackagedBars, schema: Schema) -> pd.DataFrame:
    # Imported here: arch takes a second, and only this source needs it.
    from arch.data import nasdaq, sp500

    table: pd.DataFrame = {"sp500": sp500, "nasdaq": nasdaq}[source.name].load()
    # An index pays no dividends, so its adjusted close is its close and says nothing new.
    rows = table[list(_BAR_COLUMNS)].rename(columns=_BAR_COLUMNS)
    rows.index.name = schema.index_name
    kinds = {column.name: column.kind for column in schema.columns}
    return rows.astype({name: "float64" for name in rows.columns if kinds.get(name) == "float"})


def _csv(source: CsvSource, schema: Schema) -> pd.DataFrame:
    content = _read(source.uri)
    try:
        rows = pd.read_csv(io.BytesIO(content), sep=source.separator, dtype={source.index: "str"})
    except pd.errors.EmptyDataError:
        raise _empty(source.uri) from None
    except (pd.errors.ParserError, UnicodeDecodeError, ValueError) as error:
        raise SourceError(
            f"{source.uri} cannot be parsed as CSV: {error}.",
            cause="Lines of unequal length, another separator, or not a text file in UTF-8.",
            fix="Repair the named line, or set separator, or use kind: parquet.",
        ) from None
    return _shape(rows, source, schema, where=_CsvPlace(content))


def _parquet(source: ParquetSource, schema: Schema) -> pd.DataFrame:
    import pyarrow as pa

    content = _read(source.uri)
    try:
        rows = pd.read_parquet(io.BytesIO(content), engine="pyarrow")
    except (pa.ArrowInvalid, OSError) as error:
        raise SourceError(
            f"{source.uri} cannot be read as Parquet: {error}.",
            cause="The file is torn or of another kind.",
            fix="Write it again, or use kind: csv.",
        ) from None
    if source.index not in rows.columns and source.index in rows.index.names:
        rows = rows.reset_index()
    return _shape(rows, source, schema, where=_RowPlace())


class _RowPlace:
    """Names a row of a file by its position."""

    def __call__(self, row: int) -> str:
        return f"row {row}, counted from 0"


class _CsvPlace:
    """Names a row of a CSV file by its line; read_csv skips blank ones, so they are counted."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __call__(self, row: int) -> str:
        lines = self._content.decode("utf-8", errors="replace").splitlines()
        filled = [number for number, line in enumerate(lines, start=1) if line.strip()]
        return f"line {filled[row + 1]}"


def _shape(
    rows: pd.DataFrame,
    source: CsvSource | ParquetSource,
    schema: Schema,
    *,
    where: _RowPlace | _CsvPlace,
) -> pd.DataFrame:
    """Name the columns, turn declared numbers into numbers and set the index."""
    if rows.empty:
        raise _empty(source.uri)
    names = [str(name) for name in rows.columns]
    for name in (source.index, *source.rename):
        if name not in names:
            near = nearest_name(name, names)
            hint = f" (nearest: '{near}')" if near else ""
            raise SourceError(
                f"{source.uri} has no column '{name}'{hint}. It has: {', '.join(sorted(names))}.",
                cause="'index' and the keys of 'rename' are names as they stand in the file.",
                fix="Correct 'index' or 'rename' in the source's settings.",
            )
    index = _index(rows[source.index], source, schema, where=where)
    rows = rows.drop(columns=source.index).rename(columns=source.rename)
    for column in schema.columns:
        if column.kind in ("float", "int") and list(rows.columns).count(column.name) == 1:
            rows[column.name] = _numbers(rows[column.name], column.kind, source.uri, where=where)
    rows.index = index
    return rows


def _numbers(
    series: "pd.Series[Any]", kind: str, uri: str, *, where: _RowPlace | _CsvPlace
) -> "pd.Series[Any]":
    if series.dtype.kind in "Mmb":
        return series  # validate_schema refuses it with the dtype
    numbers = pd.to_numeric(series, errors="coerce")
    bad = (numbers.isna() & series.notna()).to_numpy()
    if bad.any():
        row = int(bad.argmax())
        raise SourceError(
            f"{uri}: column '{series.name}' must hold numbers, got {series.iloc[row]!r} at "
            f"{where(row)} ({bad.sum()} such values of {len(series)}).",
            cause="Text, a unit or a thousands separator stands in a number's column.",
            fix="Write plain numbers with a decimal point there; leave an unknown value empty.",
        )
    return numbers.astype("float64") if kind == "float" else numbers


def _index(
    labels: "pd.Series[Any]",
    source: CsvSource | ParquetSource,
    schema: Schema,
    *,
    where: _RowPlace | _CsvPlace,
) -> pd.Index:
    if schema.index_kind == "datetime" and labels.dtype.kind != "M":
        layout = source.date_format if isinstance(source, CsvSource) else None
        try:
            dates = pd.to_datetime(
                labels.astype("str"), format=layout or "ISO8601", errors="coerce"
            )
        except (
            ValueError
        ) as error:  # offsets of several time zones: pandas refuses, whatever errors=
            raise SourceError(
                f"{source.uri}: the dates of column '{source.index}' cannot be read: {error}.",
                cause="They carry more than one offset from UTC, or date_format is not a format.",
                fix="Write all of them in one time zone.",
            ) from None
        bad = dates.isna().to_numpy()
        if bad.any():
            row = int(bad.argmax())
            raise SourceError(
                f"{source.uri}: column '{source.index}' must hold dates as "
                f"{layout or 'ISO 8601 (2024-12-31)'}, got {labels.iloc[row]!r} at {where(row)} "
                f"({bad.sum()} such values of {len(labels)}).",
                fix="Correct the value, or set date_format in the source's settings.",
            )
        labels = dates
    index: pd.Index = pd.Index(labels, name=schema.index_name or source.index)
    return index


def _read(uri: str) -> bytes:
    import fsspec

    try:
        with fsspec.open(uri, "rb") as file:
            content: bytes = file.read()
    except FileNotFoundError:
        raise SourceError(
            f"There is no file {uri}.{_neighbour(uri)}", fix="Correct 'uri', or put the file there."
        ) from None
    except (ImportError, ValueError) as error:
        raise SourceError(
            f"{uri} cannot be opened: {error}.",
            cause="The scheme before '://' is unknown, or its fsspec package is not installed.",
            fix="Correct 'uri', or install the package named above.",
        ) from None
    except OSError as error:
        raise SourceError(
            f"{uri} cannot be read ({error.strerror or error}).",
            fix="Check that it is a file, and that this user may read it.",
        ) from None
    if not content.strip():
        raise _empty(uri)
    return content


def _neighbour(uri: str) -> str:
    """Offer the nearest name in the folder that was looked in."""
    import fsspec

    filesystem, path = fsspec.core.url_to_fs(uri)
    folder, _, name = path.rpartition("/")
    try:
        names = [str(entry).rpartition("/")[2] for entry in filesystem.ls(folder, detail=False)]
    except (OSError, ValueError):
        return f" The folder {folder or '/'} cannot be listed either."
    near = nearest_name(name, names)
    return f" Did you mean '{near}'?" if near else ""


def _empty(uri: str) -> SourceError:
    return SourceError(
        f"{uri} must hold at least one row, and holds none.",
        cause="The export that wrote it found nothing, or was cut off.",
        fix="Write the file again, or point 'uri' at another one.",
    )
