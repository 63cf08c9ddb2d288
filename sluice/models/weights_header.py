"""Reads the header of a safetensors file strictly, before any tensor is loaded.

The header is untrusted text, and must not name or select code. Its metadata may only state the
numbers of columns of a network and whether the columns are scaled. Any other key is rejected.
"""

import math
from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, ValidationError

from sluice.base.pluralize import pluralize
from sluice.base.settings import Settings
from sluice.base.strict_json import parse_strict_json
from sluice.models.import_limits import ImportLimits

METADATA_KEY = "sluice"
"""Key of the only entry in the metadata of Sluice's files."""

_METADATA_ENTRY = "__metadata__"
"""Name of the metadata in a safetensors header."""
_LENGTH_BYTES = 8
"""Size of the integer at the start of a file that states the length of the header [bytes]."""
_ENTRY_KEYS = {"dtype", "shape", "data_offsets"}
"""Keys of a tensor's entry in the header."""
_DTYPE_BYTES: Mapping[str, int] = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
    "C64": 8,
}
"""Size of one element by dtype [bytes]."""


class WeightsMetadata(Settings):
    """Metadata in the header of a model's weights."""

    num_features: int = Field(ge=0, description="Number of input columns; 0 for a dict of inputs.")
    num_outputs: int = Field(ge=1, description="Number of columns of the prediction.")
    scale_inputs: bool = Field(description="Whether the model standardises its inputs.")
    scale_target: bool = Field(
        description="Whether the model converts its outputs from standardised to target units."
    )

    @classmethod
    def read(cls, content: bytes, limits: ImportLimits) -> Self:
        """Return the metadata of a file, after checking the shapes of the scaling tensors.

        Args:
            content: The whole file.
            limits: Limits of sizes and counts.

        Raises:
            ValueError: The header or its metadata is malformed, exceeds the limits or contradicts
                the shape of a tensor. The message is a clause about the file.
        """
        tensors, metadata = read_header(content, limits)
        if set(metadata) != {METADATA_KEY}:
            raise ValueError(f"its metadata must have only the entry {METADATA_KEY!r}")
        try:
            metadata_fields = cls.model_validate(
                parse_strict_json(metadata[METADATA_KEY].encode(), require_finite=True)
            )
        except ValidationError as error:
            first_error = error.errors()[0]
            name = ".".join(str(part)[:80] for part in first_error["loc"])
            raise ValueError(
                f"its metadata field {name!r} is invalid: {first_error['msg']}"
            ) from None
        for name, num_columns in (
            ("x_mean", metadata_fields.num_features),
            ("x_std", metadata_fields.num_features),
            ("y_mean", metadata_fields.num_outputs),
            ("y_std", metadata_fields.num_outputs),
        ):
            if num_columns > limits.max_features:
                raise ValueError(
                    f"it states {pluralize(num_columns, 'column')} (max {limits.max_features:,})"
                )
            if tensors.get(name) != (num_columns,):
                raise ValueError(
                    f"its tensor {name} must have the shape ({num_columns},) that its metadata "
                    f"states, but has {tensors.get(name, 'none')}"
                )
        return metadata_fields


def read_header(
    content: bytes, limits: ImportLimits
) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """Return the shape of every tensor by name, and the metadata.

    Args:
        content: The whole file.
        limits: Limits of sizes and counts.

    Raises:
        ValueError: The header exceeds the limits, or its length, its JSON, a key, a dtype or a
            shape is invalid; or the offsets of tensors overlap, leave a gap or do not match a
            shape.
    """
    if len(content) < _LENGTH_BYTES:
        raise ValueError(f"it has {pluralize(len(content), 'byte')}, too few for a header")
    header_length = int.from_bytes(content[:_LENGTH_BYTES], "little")
    data_start = _LENGTH_BYTES + header_length
    if data_start > len(content):
        raise ValueError(f"its header has {header_length:,} bytes, more than the file contains")
    if header_length > limits.max_header_bytes:
        raise ValueError(
            f"its header has {header_length:,} bytes (max {limits.max_header_bytes:,})"
        )
    header = parse_strict_json(content[_LENGTH_BYTES:data_start], require_finite=True)
    if not isinstance(header, dict):
        raise ValueError("its header must be a JSON object")
    metadata = header.pop(_METADATA_ENTRY, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError("its metadata must map names to strings")
    if not 1 <= len(header) <= limits.max_tensors:
        raise ValueError(
            f"it must contain 1 to {limits.max_tensors:,} tensors, but contains {len(header):,}"
        )
    byte_ranges, shapes = [], {}
    for name, entry in header.items():
        shapes[name], byte_range = _read_tensor(name, entry, limits)
        byte_ranges.append((*byte_range, name))
    previous_end = 0
    for begin, end, name in sorted(byte_ranges):
        if begin != previous_end:
            raise ValueError(
                f"tensor {name[:80]!r} must begin at byte {previous_end:,}, but begins at {begin:,}"
            )
        previous_end = end
    if previous_end != len(content) - data_start:
        raise ValueError(
            f"its tensors have {previous_end:,} bytes, but the header is followed by "
            f"{len(content) - data_start:,} bytes"
        )
    return shapes, metadata


def _read_tensor(
    name: str, entry: Any, limits: ImportLimits
) -> tuple[tuple[int, ...], tuple[int, int]]:
    """Return the shape of a tensor, and the range of its bytes as (begin, end)."""
    tensor_name = f"tensor {name[:80]!r}"
    if not name or not name.isprintable() or len(name) > limits.max_text:
        raise ValueError(
            f"{tensor_name} must have a name of 1 to {limits.max_text:,} printable characters"
        )
    if not isinstance(entry, dict) or set(entry) != _ENTRY_KEYS:
        raise ValueError(f"{tensor_name} must have exactly dtype, shape and data_offsets")
    dtype = entry["dtype"]
    bytes_per_element = _DTYPE_BYTES.get(dtype) if isinstance(dtype, str) else None
    if bytes_per_element is None:
        raise ValueError(f"{tensor_name} has the unknown dtype {str(dtype)[:80]!r}")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _are_sizes(shape) or len(shape) > limits.max_dimensions:
        raise ValueError(
            f"{tensor_name} must have a shape of at most {limits.max_dimensions} non-negative "
            f"integers, got {str(shape)[:80]}"
        )
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise ValueError(
            f"{tensor_name} must have two non-negative offsets, got {str(offsets)[:80]}"
        )
    begin, end = offsets
    if end - begin != math.prod(shape) * bytes_per_element:
        raise ValueError(
            f"{tensor_name} has {end - begin:,} bytes, which does not match its shape and dtype"
        )
    return tuple(shape), (begin, end)


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(
        type(value) is int and 0 <= value < 2**63 for value in values
    )
