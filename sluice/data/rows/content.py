"""Digests of the content of rows, such as images, which become a column of the raw rows."""

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

from sluice.data.rows.protocol import ModelInput, RowSource, gather, input_parts

_CHUNK_ROWS = 256
"""Number of rows that are in memory together."""


def content_digests(source: RowSource | Tensor) -> list[str]:
    """Return a shortened digest of every row, to be stored in a column of the raw rows.

    The data version of a pipeline is a digest of its raw rows. With this column, the data version
    also changes if a file changes but keeps its name. So no finished training is reused for other
    content.

    Args:
        source: Rows. The bits of a row must not depend on the other rows that are read with it, so
            pass images or ``TokenBlocks``, not padded texts.

    Cost:
        Reads every row once.
    """
    return [digest for rows in iter_chunks(source) for digest in row_digests(rows)]


def iter_chunks(source: RowSource | Tensor) -> Iterator[ModelInput]:
    """Yield all rows in order, in chunks of 256."""
    for start in range(0, len(source), _CHUNK_ROWS):
        yield gather(source, torch.arange(start, min(start + _CHUNK_ROWS, len(source))))


def row_digests(rows: ModelInput) -> list[str]:
    """Return the first 32 hexadecimal digits of the SHA-256 of each row's content."""
    arrays = [part.contiguous().numpy() for part in input_parts(rows)]
    digests = []
    for row in zip(*arrays, strict=True):
        hasher = hashlib.sha256()
        for values in row:
            hasher.update(values.tobytes())
        digests.append(hasher.hexdigest()[:32])
    return digests
