"""Where raw rows come from, as a pipeline's settings say it (DATA-2)."""

from typing import Annotated, Literal

from pydantic import Field

from sluice.base.settings import Settings
from sluice.data.bar_rules import BarRule
from sluice.data.source_url import SourceUrl

MAX_BYTES = 2 * 1024**3
"""Default of ``max_bytes``; a small file can claim to hold far more than it weighs."""


class PackagedBars(Settings):
    """Real daily bars shipped by the ``arch`` package, 1999 to 2018; needs no network."""

    kind: Literal["packaged"] = "packaged"
    name: Literal["sp500", "nasdaq"] = Field("sp500", description="Index whose bars are read.")


class CsvSource(Settings):
    """A comma-separated file with a header line."""

    kind: Literal["csv"] = "csv"
    uri: SourceUrl = Field(
        min_length=1,
        description="A path, or any URL that fsspec reads; ${NAME} is an environment variable, "
        "read with the rows. A password or token stands in one, or is refused.",
    )
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
    max_bytes: int = Field(
        MAX_BYTES,
        ge=1024**2,
        le=1024**4,
        description="Largest size of the file, and of its rows in memory [bytes].",
    )


class ParquetSource(Settings):
    """A Parquet file."""

    kind: Literal["parquet"] = "parquet"
    uri: SourceUrl = Field(
        min_length=1,
        description="A path, or any URL that fsspec reads; ${NAME} is an environment variable, "
        "read with the rows. A password or token stands in one, or is refused.",
    )
    index: str = Field("date", description="Column or stored index that labels the rows.")
    rename: dict[str, str] = Field(
        default_factory=dict, description="New name by name in the file, for columns."
    )
    max_bytes: int = Field(
        MAX_BYTES,
        ge=1024**2,
        le=1024**4,
        description="Largest size of the file, and of its rows in memory [bytes].",
    )


class SqlSource(Settings):
    """The rows of one query, in the order in which the database returns them."""

    kind: Literal["sql"] = "sql"
    url: SourceUrl = Field(
        min_length=1,
        description="SQLAlchemy URL; ${NAME} is an environment variable, read with the rows. A "
        "password stands in one, or is refused.",
    )
    query: str = Field(
        min_length=1,
        description="One SELECT, with ORDER BY its labels; a colon before a word is written '\\:'.",
    )
    index: str = Field("date", description="Column of the result that labels its rows.")
    rename: dict[str, str] = Field(
        default_factory=dict, description="New name by name in the result, for columns."
    )
    timeout_s: float = Field(
        600.0, gt=0, le=86_400, description="Longest time that the query may take [s]."
    )
    max_bytes: int = Field(
        MAX_BYTES,
        ge=1024**2,
        le=1024**4,
        description="Largest size of the rows in memory; reading stops there [bytes].",
    )


TableSource = CsvSource | ParquetSource | SqlSource
"""A source of a table as somebody else wrote it."""


class TickSource(Settings):
    """Bars built from ticks; the ticks have a price and a size, and a time as their index."""

    kind: Literal["ticks"] = "ticks"
    ticks: TableSource = Field(
        discriminator="kind",
        description="Where the trades are read; its rename gives columns 'price' and 'size'.",
    )
    rule: BarRule = Field(description="What closes a bar.")


SourceSettings = Annotated[PackagedBars | TableSource | TickSource, Field(discriminator="kind")]
