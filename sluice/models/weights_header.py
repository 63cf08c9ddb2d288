"""Reads the header of a safetensors file strictly, before any tensor is loaded.

The header is untrusted text. It must not name or select code. Its metadata may only state the
numbers of columns of a network and whether they are scaled; any other key is rejected.
"""

import math
from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, ValidationError

from sluice.base.pluralize import pluralize
from sluice.base.settings import Settings
from sluice.base.strict_json import parse_strict_json
from sluice.models.weights_limits import ImportLimits

FACTS = "sluice"
"""Name of the only entry in the metadata of Sluice's files."""

_METADATA = "__metadata__"
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


class WeightsFacts(Settings):
    """Metadata in the header of a model's weights; no other metadata is accepted."""

    num_features: int = Field(ge=0, description="Number of input columns; 0 for a dict of inputs.")
    num_outputs: int = Field(ge=1, description="Number of columns of the prediction.")
    scale_inputs: bool = Field(description="Whether the model standardises its inputs.")
    scale_target: bool = Field(description="Whether the model unscales its outputs.")

    @classmethod
    def read(cls, content: bytes, limits: ImportLimits) -> Self:
        """Return the metadata of a file, after checking the shapes of the scaling tensors.

        Args:
            content: The whole file.
            limits: Limits of sizes and counts.

        Raises:
            ValueError: The header or its metadata is malformed, exceeds the limits or contradicts
                the shape of a tensor; the message completes "the file is refused because ...".
        """
        tensors, metadata = read_header(content, limits)
        if set(metadata) != {FACTS}:
            raise ValueError(f"its metadata must have only the entry {FACTS!r}")
        try:
            facts = cls.model_validate(
                parse_strict_json(metadata[FACTS].encode(), require_finite=True)
            )
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(str(part)[:80] for part in first["loc"])
            raise ValueError(f"its metadata field {name!r} is invalid: {first['msg']}") from None
        for name, num_columns in (
            ("x_mean", facts.num_features),
            ("x_std", facts.num_features),
            ("y_mean", facts.num_outputs),
            ("y_std", facts.num_outputs),
        ):
            if num_columns > limits.max_features:
                raise ValueError(
                    f"it states {pluralize(num_columns, 'column')} (max {limits.max_features:,})"
                )
            if tensors.get(name) != (num_columns,):
                raise ValueError(
                    f"its tensor {name} must have shape ({num_columns},), as its metadata state, "
                    f"and has {tensors.get(name, 'none')}"
                )
        return facts


def read_header(
    content: bytes, limits: ImportLimits
) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """Return the shape of every tensor by name, and the metadata.

    Args:
        content: The whole file.
        limits: Limits of sizes and counts.

    Raises:
        ValueError: The header exceeds the limits, or is malformed: its length, its JSON, a key, a
            dtype, a shape, or offsets that overlap, leave a gap or do not match the shape.
    """
    if len(content) < _LENGTH_BYTES:
        raise ValueError(f"it has {pluralize(len(content), 'byte')}, too few for a header")
    length = int.from_bytes(content[:_LENGTH_BYTES], "little")
    start = _LENGTH_BYTES + length
    if start > len(content):
        raise ValueError(f"its header has {length:,} bytes, more than the file contains")
    if length > limits.max_header_bytes:
        raise ValueError(f"its header has {length:,} bytes (max {limits.max_header_bytes:,})")
    header = parse_strict_json(content[_LENGTH_BYTES:start], require_finite=True)
    if not isinstance(header, dict):
        raise ValueError("its header must be a JSON object")
    metadata = header.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError("its metadata must map names to strings")
    if not 1 <= len(header) <= limits.max_tensors:
        raise ValueError(
            f"it contains {pluralize(len(header), 'tensor')} (1 to {limits.max_tensors:,})"
        )
    spans, shapes = [], {}
    for name, entry in header.items():
        shapes[name], span = _read_tensor(name, entry, limits)
        spans.append((*span, name))
    previous_end = 0
    for begin, end, name in sorted(spans):
        if begin != previous_end:
            raise ValueError(
                f"tensor {name[:80]!r} begins at byte {begin:,}, required {previous_end:,}"
            )
        previous_end = end
    if previous_end != len(content) - start:
        raise ValueError(
            f"its tensors have {previous_end:,} bytes, but {len(content) - start:,} follow its "
            "header"
        )
    return shapes, metadata


def _read_tensor(
    name: str, entry: Any, limits: ImportLimits
) -> tuple[tuple[int, ...], tuple[int, int]]:
    """Return the shape of a tensor, and the range of its bytes as (begin, end)."""
    label = f"tensor {name[:80]!r}"
    if not name or not name.isprintable() or len(name) > limits.max_text:
        raise ValueError(
            f"{label} must have a name of 1 to {limits.max_text:,} printable characters"
        )
    if not isinstance(entry, dict) or set(entry) != _ENTRY_KEYS:
        raise ValueError(f"{label} must have exactly dtype, shape and data_offsets")
    dtype = entry["dtype"]
    bytes_per_number = _DTYPE_BYTES.get(dtype) if isinstance(dtype, str) else None
    if bytes_per_number is None:
        raise ValueError(f"{label} has the unknown dtype {str(dtype)[:80]!r}")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _are_sizes(shape) or len(shape) > limits.max_dimensions:
        raise ValueError(
            f"{label} must have a shape of up to {limits.max_dimensions} integers from 0, got "
            f"{str(shape)[:80]}"
        )
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise ValueError(f"{label} must have two offsets from 0, got {str(offsets)[:80]}")
    begin, end = offsets
    if end - begin != math.prod(shape) * bytes_per_number:
        raise ValueError(
            f"{label} has {end - begin:,} bytes, which does not match its shape and dtype"
        )
    return tuple(shape), (begin, end)


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(
        type(value) is int and 0 <= value < 2**63 for value in values
    )
