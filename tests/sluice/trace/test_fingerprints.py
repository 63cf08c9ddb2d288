"""Fingerprints of batches that several seams see (TRACE-11)."""

import numpy as np
import torch

from sluice.trace.fingerprints import LOADER, NETWORK, RowPrints


def test_rows_that_numpy_changed_in_place_have_new_fingerprints_where_they_are_seen_again():
    rows = np.zeros((2, 3), dtype=np.float32)
    batch, prints = torch.from_numpy(rows), RowPrints()
    first = prints.of(batch, words=8, place=LOADER)

    assert prints.of(batch, words=8, place=NETWORK) == first
    rows += 1  # torch counts no version of this
    second = prints.of(batch, words=8, place=LOADER)
    assert second != first
    assert prints.of(batch, words=8, place=NETWORK) == second
    rows += 1
    assert prints.of(batch, words=8, place=NETWORK) != second
