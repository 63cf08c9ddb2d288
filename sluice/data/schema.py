"""Declared shape of a table (SCH-1)."""

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
    """True when one value in every row is no mistake."""


class Schema(Record):
    """The columns and the index a stage needs. Further columns are allowed."""

    columns: tuple[Column, ...]
    index_name: str | None = None
    index_kind: ColumnKind | None = None
    """None takes any, but no text where the index is to be sorted: as text, days are not in order
    of time. "string" says that text is meant."""

    index_unique: bool = True
    index_sorted: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the required columns, in declared order."""
        return tuple(column.name for column in self.columns)
