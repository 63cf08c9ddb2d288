"""Schema of a table: the columns and the index that a stage of a pipeline requires."""

from typing import Literal

from sluice.base.settings import Record

ColumnKind = Literal["float", "int", "bool", "string", "datetime"]


class Column(Record):
    """One required column."""

    name: str
    kind: ColumnKind = "float"
    nullable: bool = False
    description: str = ""
    unit: str = ""
    constant: bool = False
    """Whether the column may be constant, that is, have the same value in every row."""


class Schema(Record):
    """Columns and index that a stage requires. Additional columns are allowed."""

    columns: tuple[Column, ...]
    index_name: str | None = None
    index_kind: ColumnKind | None = None
    """Type of the index. None accepts any type, except text if the index must be sorted, because
    the text order of dates is usually not their order in time. "string" declares that text is
    intended."""

    index_unique: bool = True
    index_sorted: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the required columns, in declared order."""
        return tuple(column.name for column in self.columns)
