"""Helpers for Dagster metadata: images, tables, column schemas and previews."""

import base64
from collections.abc import Mapping, Sequence

import dagster as dg
import pandas as pd

from sluice.base.redaction import redact
from sluice.data.schema import Schema

REUSED = "from earlier runs"
"""Metadata key. The value is a text that names the parts of a result from earlier runs."""


def picture(png: bytes, alt: str) -> dg.MarkdownMetadataValue:
    """Return a small PNG as Markdown with inline data; Dagster has no metadata type for images."""
    return dg.MetadataValue.md(f"![{alt}](data:image/png;base64,{base64.b64encode(png).decode()})")


def table(rows: Sequence[Mapping[str, object]]) -> dg.MarkdownMetadataValue:
    """Return rows with the same keys as a Markdown table; floats have four significant digits."""
    if not rows:
        return dg.MetadataValue.md("(no rows)")
    names = list(rows[0])
    lines = [
        "| " + " | ".join(names) + " |",
        "|" + "|".join("---" for _ in names) + "|",
        *("| " + " | ".join(_format_cell(row[name]) for name in names) + " |" for row in rows),
    ]
    return dg.MetadataValue.md("\n".join(lines))


def column_schema(schema: Schema) -> dg.TableSchema:
    """Return the declared columns with their types, units and descriptions."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                name=column.name,
                type=column.kind,
                description=" ".join(
                    part
                    for part in (column.description, f"[{column.unit}]" if column.unit else "")
                    if part
                )
                or None,
                constraints=dg.TableColumnConstraints(nullable=column.nullable),
            )
            for column in schema.columns
        ]
    )


def preview(frame: pd.DataFrame, num_rows: int = 3) -> dg.MarkdownMetadataValue:
    """Return the first and the last ``num_rows`` rows as a table."""
    if len(frame) > 2 * num_rows:
        frame = pd.concat([frame.head(num_rows), frame.tail(num_rows)])
    index_name = str(frame.index.name or "row")
    return table(
        [
            {index_name: label} | {str(column): value for column, value in row.items()}
            for label, row in zip(frame.index, frame.to_dict("records"), strict=True)
        ]
    )


def _format_cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, pd.Timestamp):
        return str(value.date()) if value == value.normalize() else str(value)
    return redact(str(value)).replace("|", "\\|")
