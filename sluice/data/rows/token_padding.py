"""Pads token ids of documents to one length, in training and in serving.

Shape legend: B = documents, L = padded length [tokens].
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


def pad_documents(
    documents: Iterable[NDArray[np.integer]],
    lengths: NDArray[np.int64],
    *,
    length: int,
    pad_id: int,
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the ids, int64 (B, L), and the mask, bool (B, L), which is True inside a document.

    Args:
        documents: Token ids of each document, at most ``length`` ids per document.
        lengths: Number of tokens of each document (B,).
        length: Padded length (L) [tokens].
        pad_id: Id at the positions after the end of a document.
    """
    ids = np.full((len(lengths), length), pad_id, np.int64)
    for row, document in zip(ids, documents, strict=True):
        row[: len(document)] = document
    return ids, np.arange(length) < lengths[:, None]
