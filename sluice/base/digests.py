"""Computes content digests, which are equal for equal content on every machine.

A digest does not depend on the versions of Python and of libraries. Every digest is the SHA-256 of
the content in a canonical byte form, written as 64 lower-case hexadecimal digits.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def digest_bytes(content: bytes) -> str:
    """Return the digest of raw bytes.

    >>> digest_bytes(b"")[:12]
    'e3b0c44298fc'
    """
    return hashlib.sha256(content).hexdigest()


def digest_json(value: Any) -> str:
    """Return the digest of plain JSON data; the order of keys does not change it.

    >>> digest_json({"a": 1, "b": 2}) == digest_json({"b": 2, "a": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return digest_bytes(text.encode())


def digest_frame(frame: "pd.DataFrame") -> str:
    """Return the digest of a table: index, column order, dtypes and values.

    It does not depend on a file format, so a new version of a Parquet writer does not change it.
    """
    sha = hashlib.sha256()
    index = (str(frame.index.name), frame.index.to_series())
    columns = [(str(column), frame[column]) for column in frame.columns]
    for name, series in [index, *columns]:
        sha.update(json.dumps([name, str(series.dtype), len(series)]).encode())
        sha.update(_column_bytes(series))
    return sha.hexdigest()


def digest_files(paths: Mapping[str, Path]) -> str:
    """Return one digest of several files, which covers their names and contents."""
    return digest_json({name: digest_bytes(path.read_bytes()) for name, path in paths.items()})


def short(digest: str) -> str:
    """Return the first 12 characters of a digest, for display."""
    return digest[:12]


def _column_bytes(series: "pd.Series[Any]") -> bytes:
    """Return the values in canonical form: little-endian numbers, times in ns, or texts as JSON."""
    # Imported here, because pandas takes half a second and few users of this module digest tables.
    import numpy as np
    import pandas as pd

    values = series.to_numpy()
    if values.dtype.kind in "fiub":
        return np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<")).tobytes()
    if values.dtype.kind in "mM":
        dtype_name = "datetime64[ns]" if values.dtype.kind == "M" else "timedelta64[ns]"
        return values.astype(dtype_name).astype("<i8").tobytes()
    return json.dumps([None if pd.isna(value) else str(value) for value in values]).encode()
