"""Settings of the sources of raw rows."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from sluice.base.settings import Settings
from sluice.data.bar_rules import BarRule
from sluice.data.number_format import DecimalSeparator, GroupSeparator
from sluice.data.source_url import SourceUrl

MAX_BYTES = 2 * 1024**3
"""Default of ``max_bytes``, which protects against small compressed files that expand to huge
tables."""

DateFormat = Annotated[
    str | None,
    Field(
        description="Format of the dates of the index: a strptime format such as '%d/%m/%Y', or "
        "unix_s, unix_ms, unix_us or unix_ns for numbers that count from 1970-01-01 in UTC. ISO "
        "8601 by default, because other orders of day and month are ambiguous.",
    ),
]


class PackagedBars(Settings):
    """Real daily bars from 1999 to 2018, which are part of the installed ``arch`` package."""

    kind: Literal["packaged"] = "packaged"
    name: Literal["sp500", "nasdaq"] = Field("sp500", description="Stock index of the bars.")


class CsvSource(Settings):
    """A CSV file with a header line."""

    kind: Literal["csv"] = "csv"
    uri: SourceUrl = Field(
        min_length=1,
        description="A path or any URL that fsspec supports; ${NAME} is replaced by the "
        "environment variable NAME when rows are read. Passwords and tokens must be in such a "
        "variable.",
    )
    index: str | None = Field(
        "date", description="Column of the file that labels its rows; null numbers them from 0."
    )
    rename: dict[str, str] = Field(
        default_factory=dict, description="New column names, by the name of the column in the file."
    )
    separator: str = Field(",", min_length=1, max_length=1, description="Separator between values.")
    decimal: DecimalSeparator = Field(".", description="Decimal separator of numbers.")
    thousands: GroupSeparator | None = Field(
        None,
        description="Separator between groups of three digits, such as '.' in 1.234,5. ' ' also "
        "matches no-break spaces. null: numbers have no groups.",
    )
    missing: tuple[str, ...] = Field(
        (),
        strict=False,
        description="Texts that mean a missing value, such as '?'. An empty text, 'NA', 'NaN', "
        "'null' and 'None' always mean one.",
    )
    skip_spaces: bool = Field(
        False, description="Whether spaces after a separator are skipped, as in 'a, b'."
    )
    encoding: str = Field(
        "utf-8",
        description="Encoding of the file, as a Python codec; Excel also writes 'cp1252' and "
        "'utf-16'.",
    )
    date_format: DateFormat = None
    max_bytes: int = Field(
        MAX_BYTES,
        ge=1024**2,
        le=1024**4,
        description="Maximum size of the file, and of its rows in memory [bytes].",
    )

    @model_validator(mode="after")
    def _require_different_separators(self) -> Self:
        if self.thousands == self.decimal:
            raise ValueError(
                f"'thousands' must differ from 'decimal', got {self.decimal!r} for both"
            )
        return self

    @field_validator("encoding")
    @classmethod
    def _require_text_encoding(cls, name: str) -> str:
        try:
            b"a".decode(name, errors="replace")
        except LookupError:
            raise ValueError(
                f"'encoding' must be a text encoding of Python, such as utf-8, cp1252 or utf-16, "
                f"got {name!r}"
            ) from None
        return name


class ParquetSource(Settings):
    """A Parquet file, or a folder of Parquet files such as a partitioned data set."""

    kind: Literal["parquet"] = "parquet"
    uri: SourceUrl = Field(
        min_length=1,
        description="A path of a file or a folder, or any URL that fsspec supports; ${NAME} is "
        "replaced by the environment variable NAME when rows are read. Passwords and tokens must "
        "be in such a variable. A folder named *.parquet needs a '/' at the end. Files of a folder "
        "are read in the order of their paths, and folders such as 'year=2020' become columns.",
    )
    index: str | None = Field(
        "date",
        description="Column or stored index that labels the rows; null numbers them from 0.",
    )
    rename: dict[str, str] = Field(
        default_factory=dict, description="New column names, by the name of the column in the file."
    )
    date_format: DateFormat = None
    max_bytes: int = Field(
        MAX_BYTES,
        ge=1024**2,
        le=1024**4,
        description="Maximum size of the file, and of its rows in memory [bytes].",
    )


class SqlSource(Settings):
    """The rows of one SQL query, in the order in which the database returns them."""

    kind: Literal["sql"] = "sql"
    url: SourceUrl = Field(
        min_length=1,
        description="SQLAlchemy URL; ${NAME} is replaced by the environment variable NAME when "
        "rows are read. A password must be in such a variable.",
    )
    query: str = Field(
        min_length=1,
        description="One SELECT that orders rows by their index labels (ORDER BY); write a colon "
        "before a word as '\\:'.",
    )
    index: str | None = Field(
        "date", description="Column of the result that labels its rows; null numbers them from 0."
    )
    rename: dict[str, str] = Field(
        default_factory=dict,
        description="New column names, by the name of the column in the result.",
    )
    date_format: DateFormat = None
    timeout_s: float = Field(
        600.0, gt=0, le=86_400, description="Maximum duration of the query [s]."
    )
    max_bytes: int = Field(
        MAX_BYTES,
        ge=1024**2,
        le=1024**4,
        description="Maximum size of the rows in memory; reading stops at this size [bytes].",
    )


class JsonLinesSource(Settings):
    """A file with one JSON object per line; each key is a column."""

    kind: Literal["jsonl"] = "jsonl"
    uri: SourceUrl = Field(
        min_length=1,
        description="A path or any URL that fsspec supports; ${NAME} is replaced by the "
        "environment variable NAME when rows are read. Passwords and tokens must be in such a "
        "variable.",
    )
    index: str | None = Field(
        None, description="Key that labels the rows; null numbers them from 0."
    )
    rename: dict[str, str] = Field(
        default_factory=dict, description="New column names, by the name of the column in the file."
    )
    date_format: DateFormat = None
    max_bytes: int = Field(
        MAX_BYTES,
        ge=1024**2,
        le=1024**4,
        description="Maximum size of the file [bytes].",
    )


class AssetSource(Settings):
    """The data frame that another Dagster asset of the project returns.

    The IO manager of that asset reads the rows, so they are available only in runs, schedules and
    sensors of a Dagster project.
    """

    kind: Literal["asset"] = "asset"
    key: tuple[str, ...] = Field(
        min_length=1, strict=False, description="Key of the asset, one text per part."
    )
    index: str | None = Field(
        None,
        description="Column or index of the data frame that labels the rows; null numbers them "
        "from 0.",
    )
    rename: dict[str, str] = Field(
        default_factory=dict,
        description="New column names, by the name of the column in the data frame.",
    )
    date_format: DateFormat = None

    @property
    def uri(self) -> str:
        """Name of the source in messages."""
        return f"asset {'/'.join(self.key)}"


TableSource = CsvSource | ParquetSource | JsonLinesSource | SqlSource | AssetSource
"""Sources of external tables."""


class TickSource(Settings):
    """Bars built from ticks, which have a price, a size and a time index."""

    kind: Literal["ticks"] = "ticks"
    ticks: TableSource = Field(
        discriminator="kind",
        description="Source of the trades, with columns 'price' and 'size' after rename.",
    )
    rule: BarRule = Field(description="Rule that closes a bar.")


SourceSettings = Annotated[PackagedBars | TableSource | TickSource, Field(discriminator="kind")]
