"""Types of the columns of packed records."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sluice.base.errors import SettingsError, SourceError
from sluice.base.settings import suggest_nearest

if TYPE_CHECKING:
    import pyarrow as pa

TYPE_NAMES = (
    *("int64", "float64", "bool", "string", "binary"),
    *("list<int64>", "list<float64>", "list<string>"),
)
"""Types that a user can declare for a column."""


def parse_columns(declarations: Sequence[str]) -> dict[str, str]:
    """Return the types that texts such as ``price=float64`` declare, by column.

    Raises:
        SettingsError: A text has no equals sign, or the type is unknown.
    """
    columns = {}
    for text in declarations:
        name, separator, kind = text.rpartition("=")
        if not (separator and name and kind in TYPE_NAMES):
            raise SettingsError(
                f"A column must be NAME=TYPE, got '{text}'.",
                fix=f"Use one of the types {', '.join(TYPE_NAMES)}, such as price=float64.",
            )
        columns[name] = kind
    return columns


def apply_declared_types(schema: "pa.Schema", declared_types: Mapping[str, str]) -> "pa.Schema":
    """Return an inferred schema with the types that the user declared.

    A column of type null, which had no values in the records that the schema was inferred from,
    gets the type string. A dictionary-encoded column gets the type of its values, because the
    categories may differ between two batches.

    Raises:
        SettingsError: A declared column does not exist.
    """
    import pyarrow as pa

    unknown_columns = [name for name in declared_types if name not in schema.names]
    if unknown_columns:
        raise SettingsError(
            f"The source has no column '{unknown_columns[0]}'."
            f"{suggest_nearest(unknown_columns[0], list(schema.names))}",
            fix=f"Declare types of the columns of the source: {', '.join(schema.names)}.",
        )
    return pa.schema(
        [
            (field.name, arrow_type(declared_types[field.name]))
            if field.name in declared_types
            else (field.name, _value_type(field.type))
            for field in schema
        ]
    )


def arrow_type(name: str) -> "pa.DataType":
    """Return the Arrow type of a declared type."""
    import pyarrow as pa

    if name.startswith("list<"):
        return pa.list_(pa.type_for_alias(name[len("list<") : -1]))
    return pa.type_for_alias(name)


def infer_columns(records: Sequence[Mapping[str, Any]], source: str) -> "pa.Schema":
    """Return the schema of records, with the columns in the order of their first appearance.

    Raises:
        SourceError: A column has values of several types.
    """
    import pyarrow as pa

    fields = []
    for name in dict.fromkeys(key for record in records for key in record):
        try:
            kind = pa.array([record.get(name) for record in records]).type
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise SourceError(
                f"The column '{name}' of {source} must have values of one type: {error}.",
                cause="Some records have a text or a list where other records have a number.",
                fix="Convert the values in the source to one type.",
            ) from None
        fields.append((name, kind))
    return pa.schema(fields)


def to_array(values: Sequence[Any], kind: "pa.DataType") -> "pa.Array":
    """Return JSON values as an array; only integers (to floats) and texts (to bytes) are converted.

    ``pyarrow.array(values, kind)`` alone would truncate 1.5 to 1, and drop unknown keys of objects.

    Raises:
        pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, OverflowError: A value does not fit the type.
    """
    import pyarrow as pa

    array = pa.array(values)
    if array.type.equals(kind):
        return array
    if not _fits(array.type, kind):
        raise pa.ArrowInvalid(f"got {array.type}")
    return pa.array(values, kind)


def _fits(inferred: "pa.DataType", kind: "pa.DataType") -> bool:
    import pyarrow as pa

    if pa.types.is_list(inferred) and pa.types.is_list(kind):
        return _fits(inferred.value_type, kind.value_type)
    if pa.types.is_struct(inferred) and pa.types.is_struct(kind):
        types_by_name = {field.name: field.type for field in kind}
        return all(
            field.name in types_by_name and _fits(field.type, types_by_name[field.name])
            for field in inferred
        )
    return bool(
        inferred.equals(kind)
        or pa.types.is_null(inferred)
        or (pa.types.is_int64(inferred) and pa.types.is_floating(kind))
        or (pa.types.is_string(inferred) and pa.types.is_binary(kind))
    )


def _value_type(kind: "pa.DataType") -> "pa.DataType":
    import pyarrow as pa

    if pa.types.is_null(kind):
        return pa.string()
    return _value_type(kind.value_type) if pa.types.is_dictionary(kind) else kind
