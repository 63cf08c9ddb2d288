"""Reads and writes drift references as Parquet files, stored under their digests.

The file has one row for each column, and one row for the joint test.
"""

import io
import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import digest_bytes
from sluice.base.errors import IntegrityError
from sluice.base.strict_json import parse_strict_json
from sluice.config.drift_settings import DriftSettings
from sluice.data.table_bytes import require_bounded_table
from sluice.drift.binning import CategoryCells, NumericCells
from sluice.drift.calibration import NullDistribution
from sluice.drift.columns import ColumnReference
from sluice.drift.dependence import Dependence
from sluice.drift.joint import JointReference
from sluice.drift.reference import Calibration, DriftReference

_FORMAT = 1
"""Format number of the file; a file of another format is rejected."""
_HEADER_KEY = b"sluice.drift"
"""Key of the header in the metadata of the Parquet file."""
_ARRAYS: dict[str, str] = {
    "edges": "<f8",
    "counts": "<i8",
    "positions": "<f8",
    "blocks": "<u2",
    "spans": "<i8",
    "means": "<f8",
    "block_means": "<f4",
    "null_distances": "<f4",
    "null_smallest": "<f8",
}
"""Data type of each array, by the name of its binary column."""


def reference_bytes(reference: DriftReference) -> bytes:
    """Return the content of the file; equal references give identical bytes."""
    rows = [
        _column_row(column, null)
        for column, null in zip(reference.columns, reference.calibration.columns, strict=True)
    ]
    if reference.joint is not None:
        rows.append(_joint_row(reference.joint, reference.calibration.joint))
    table = pa.table({name: pa.array([row[name] for row in rows], t) for name, t in _TYPES.items()})
    header = {
        "format": _FORMAT,
        "settings": reference.settings.model_dump(mode="json", exclude={"embedding"}),
        "seed": reference.seed,
        "num_rows": reference.num_rows,
        "window_rows": reference.calibration.num_rows,
        "digest": _content_digest(rows, reference.excluded_columns),
        "left_out": reference.excluded_columns,
    }
    with_header = table.replace_schema_metadata({_HEADER_KEY: json.dumps(header, sort_keys=True)})
    buffer = io.BytesIO()
    pq.write_table(with_header, buffer, compression="zstd")
    return buffer.getvalue()


def parse_reference(content: bytes) -> DriftReference:
    """Return the reference in the content of a file.

    Raises:
        IntegrityError: The file is truncated, modified, or has another format.
    """
    try:
        require_bounded_table(content, what="The drift reference")
        table = pq.read_table(io.BytesIO(content))
        header = parse_strict_json((table.schema.metadata or {})[_HEADER_KEY], require_finite=False)
        rows = table.to_pylist()
        excluded_columns = tuple(header.get("left_out", ()))
        if header["format"] != _FORMAT or header["digest"] != _content_digest(
            rows, excluded_columns
        ):
            raise _damaged_error("its content does not match its header")
        return _parse_rows(header, rows)
    except (pa.ArrowInvalid, OSError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise _damaged_error(f"{type(error).__name__}: {error}") from None


def save_reference(reference: DriftReference, store: ArtifactStore) -> str:
    """Store the reference and return its digest; saving it again has no effect.

    Raises:
        StorageError: The store is not writable.
    """
    return store.put(reference_bytes(reference))


def load_reference(digest: str, store: ArtifactStore) -> DriftReference:
    """Return the reference with this digest.

    Raises:
        IntegrityError: The artifact is missing, damaged, or not a drift reference.
        StorageError: The artifact cannot be read.
    """
    return parse_reference(store.get(digest))


_TYPES: dict[str, pa.DataType] = {
    "name": pa.string(),
    "categories": pa.list_(pa.string()),
    "num_own": pa.int64(),
    "block_length": pa.int64(),
    "stretch": pa.float64(),
    **dict.fromkeys(_ARRAYS, pa.binary()),
}
"""Data type of each column of the file. ``num_own`` contains ``CategoryCells.num_frequent``, and
``stretch`` contains ``Dependence.inflation``; their names are part of the file format."""


def _column_row(column: ColumnReference, null: NullDistribution | None) -> dict[str, Any]:
    cells = column.cells
    cell_values: dict[str, Any] = (
        {"edges": cells.edges}
        if isinstance(cells, NumericCells)
        else {"categories": list(cells.categories), "num_own": cells.num_frequent}
    )
    return _row(
        column.dependence,
        null,
        name=column.name,
        counts=column.count_G,
        positions=column.position_G,
        blocks=column.block_KG,
        spans=np.stack((column.first_C, column.last_C, column.size_C)),
        **cell_values,
    )


def _joint_row(joint: JointReference, null: NullDistribution | None) -> dict[str, Any]:
    return _row(joint.dependence, null, means=joint.mean_F, block_means=joint.block_KF)


def _row(dependence: Dependence, null: NullDistribution | None, **values: Any) -> dict[str, Any]:
    values |= {"block_length": dependence.block_length, "stretch": dependence.inflation}
    if null is not None:
        values |= {"null_distances": null.distance_DS, "null_smallest": null.smallest_p_D}
    packed_arrays = {name: _to_bytes(values.get(name), dtype) for name, dtype in _ARRAYS.items()}
    return {name: values.get(name) for name in _TYPES} | packed_arrays


def _to_bytes(values: NDArray[Any] | None, dtype: str) -> bytes | None:
    return None if values is None else np.ascontiguousarray(values).astype(dtype).tobytes()


def _read_array(row: dict[str, Any], name: str, width: int = 0) -> NDArray[Any]:
    """Return an array of the row; ``width`` is its number of columns, or 0 for one dimension."""
    values = np.frombuffer(row[name], _ARRAYS[name])
    return values.reshape(-1, width) if width else values


def _parse_rows(header: dict[str, Any], rows: list[dict[str, Any]]) -> DriftReference:
    column_rows = [row for row in rows if row["name"] is not None]
    columns = tuple(map(_parse_column, column_rows))
    joint = next((row for row in rows if row["name"] is None), None)
    window_rows = int(header["window_rows"])
    return DriftReference(
        settings=DriftSettings.model_validate(header["settings"]),
        seed=int(header["seed"]),
        columns=columns,
        joint=None if joint is None else _parse_joint(joint, int(header["num_rows"])),
        calibration=Calibration(
            num_rows=window_rows,
            columns=tuple(
                _parse_null(row, window_rows, len(column.statistics))
                for row, column in zip(column_rows, columns, strict=True)
            ),
            joint=None if joint is None else _parse_null(joint, window_rows, 1),
        ),
        excluded_columns=tuple(header.get("left_out", ())),
    )


def _parse_column(row: dict[str, Any]) -> ColumnReference:
    count_G = _read_array(row, "counts")
    cells = (
        CategoryCells(categories=tuple(row["categories"]), num_frequent=row["num_own"])
        if row["edges"] is None
        else NumericCells(edges=_read_array(row, "edges"))
    )
    first_C, last_C, size_C = _read_array(row, "spans").reshape(3, -1)
    return ColumnReference(
        name=row["name"],
        cells=cells,
        count_G=count_G,
        position_G=_read_array(row, "positions"),
        dependence=_parse_dependence(row),
        block_KG=_read_array(row, "blocks", count_G.size),
        first_C=first_C,
        last_C=last_C,
        size_C=size_C,
    )


def _parse_joint(row: dict[str, Any], num_rows: int) -> JointReference:
    mean_F = _read_array(row, "means")
    return JointReference(
        num_rows=num_rows,
        mean_F=mean_F,
        block_KF=_read_array(row, "block_means", mean_F.size),
        dependence=_parse_dependence(row),
    )


def _parse_null(row: dict[str, Any], num_rows: int, num_statistics: int) -> NullDistribution | None:
    if row["null_smallest"] is None:
        return None
    return NullDistribution(
        num_rows=num_rows,
        distance_DS=_read_array(row, "null_distances", num_statistics),
        smallest_p_D=_read_array(row, "null_smallest"),
    )


def _parse_dependence(row: dict[str, Any]) -> Dependence:
    return Dependence(block_length=row["block_length"], inflation=row["stretch"])


def _content_digest(rows: list[dict[str, Any]], excluded_columns: tuple[str, ...]) -> str:
    """Return the digest of the rows and excluded names, independent of the Parquet encoding."""
    parts = [[_to_json_value(row[name]) for name in sorted(_TYPES)] for row in rows]
    if excluded_columns:
        parts.append(list(excluded_columns))
    return digest_bytes(json.dumps(parts).encode())


def _to_json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return digest_bytes(value)
    return None if isinstance(value, float) and math.isnan(value) else value


def _damaged_error(why: str) -> IntegrityError:
    return IntegrityError(
        f"The file does not contain a valid drift reference ({why}).",
        cause="The file was modified or truncated after it was written, or has another format.",
        fix="Rebuild the reference from its rows, or restore the file from a backup.",
    )
