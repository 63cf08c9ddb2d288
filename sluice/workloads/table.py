"""Workload for a table: the user declares the target and the columns that are inputs.

``sluice init`` writes a class of this kind, and every method may be overridden.
"""

import inspect
from pathlib import PurePath
from typing import ClassVar

import pandas as pd
from pydantic import Field

from sluice.base.errors import SchemaError, SettingsError
from sluice.data import sources
from sluice.data.raw_rows import convert_dates, row_location
from sluice.data.schema import Schema
from sluice.data.source_settings import SqlSource, TableSource
from sluice.data.validation import validate_schema
from sluice.workloads.columns import as_labels
from sluice.workloads.columns_workload import CLUSTER, ColumnsWorkload
from sluice.workloads.workload import WorkloadSettings


class TableWorkloadSettings(WorkloadSettings):
    """Settings of the source of a table."""

    source: TableSource = Field(
        discriminator="kind",
        description="Source of the rows. A relative path is relative to the folder of the "
        "workload's module. 'index' names the column that orders the rows in time; null orders "
        "them by a hash of their inputs.",
    )


class TableWorkload(ColumnsWorkload):
    """Rows of a table, with one feature or more for each input column.

    A subclass declares ``target_column`` and ``inputs``; a classifier also declares ``task`` and
    ``classes``. Rows with a missing target are omitted.

    If the source has an index, rows are sorted by it, and a target is known one row later
    (``horizon_rows`` is 1). With ``repeated_labels``, rows with the same index label, such as those
    of one day, form a cluster. A cluster is never divided between train, validation and test rows.
    Without an index, rows are independent (``horizon_rows`` is 0) and ordered by a hash of their
    inputs. With ``repeated_inputs``, rows with equal inputs are separate observations.
    """

    settings_type: ClassVar[type[WorkloadSettings]] = TableWorkloadSettings
    settings: TableWorkloadSettings

    repeated_labels: bool = False
    """Whether several rows may have the same index label, such as the rows of one day."""

    def __init__(self, settings: TableWorkloadSettings | None = None) -> None:
        if settings is None:
            raise SettingsError(
                f"{type(self).__name__} requires settings with a 'source'.",
                fix="Set 'source' in workload_settings.",
            )
        self.settings = settings
        is_ordered = settings.source.index is not None
        self.horizon_rows = 1 if is_ordered else 0
        self.cluster_column = CLUSTER if is_ordered and self.repeated_labels else None
        self._declare_columns(index=settings.source.index)

    def load_rows(self) -> pd.DataFrame:
        """Return the rows of the source in order, with categories and texts as strings.

        Raises:
            SourceError: The source is missing, empty or unreadable, or a column has another type.
            SchemaError: A column is missing.
        """
        rows = sources.load_rows(self._resolve_source(), schema=self._numeric_schema())
        self._require_columns(rows)
        for column in self.raw_schema.columns:
            if column.kind == "string":
                rows[column.name] = as_labels(rows[column.name])
            elif column.kind == "datetime":
                rows[column.name] = convert_dates(
                    rows[column.name], origin=self._describe_source(), where=row_location
                )
        if self.settings.source.index is not None:
            return rows.sort_index(kind="stable")
        return self.in_key_order(rows)

    def _require_columns(self, rows: pd.DataFrame) -> None:
        """Raise an error that names the source and the class, unless all columns are present."""
        try:
            validate_schema(rows, self.raw_schema.names, "raw")
        except SchemaError as error:
            source, declaration = self._describe_source(), self._describe_declaration()
            raise SchemaError(
                f"{error.what} The rows are from {source}.",
                cause=f"A column was renamed in {source}, or its name in {declaration} is wrong.",
                fix=f"Rename the column in {source}, or correct its name in the inputs or the "
                f"target_column of {declaration}.",
            ) from None

    def _describe_source(self) -> str:
        source = self.settings.source
        return str(getattr(source, "uri", "") or f"the source of kind '{source.kind}'")

    def _describe_declaration(self) -> str:
        """Return the name of this class and, unless it is from a notebook, of its file."""
        name = f"the class {type(self).__name__}"
        try:
            return f"{name} in {PurePath(inspect.getfile(type(self))).name}"
        except (TypeError, OSError):
            return name

    def _numeric_schema(self) -> Schema:
        """Return the schema of the float columns; other columns are converted after reading."""
        numeric = tuple(column for column in self.raw_schema.columns if column.kind == "float")
        return self.raw_schema.model_copy(update={"columns": numeric})

    def _resolve_source(self) -> TableSource:
        """Return the source, with an absolute path if its relative path is an existing file."""
        source = self.settings.source
        uri = getattr(source, "uri", "")
        is_path = not isinstance(source, SqlSource) and source.kind != "asset" and "://" not in uri
        if not is_path or "${" in uri or PurePath(uri).is_absolute():
            return source
        path = self.data_path(uri)
        return source.model_copy(update={"uri": str(path)}) if path.exists() else source
