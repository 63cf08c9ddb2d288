"""Fingerprints of batches that several hooks receive (TRACE-11)."""

import random

import numpy as np
import torch

from sluice.trace.inspection.fingerprints import (
    LOADER,
    NETWORK,
    OrderFingerprint,
    RowFingerprintCache,
    random_state_fingerprints,
)


def test_rows_changed_in_place_by_numpy_get_new_fingerprints():
    rows = np.zeros((2, 3), dtype=np.float32)
    batch, cache = torch.from_numpy(rows), RowFingerprintCache()
    first = cache.fingerprint(batch, sample_size=8, stage=LOADER)

    assert cache.fingerprint(batch, sample_size=8, stage=NETWORK) == first
    rows += 1  # the tensor version does not change
    second = cache.fingerprint(batch, sample_size=8, stage=LOADER)
    assert second != first
    assert cache.fingerprint(batch, sample_size=8, stage=NETWORK) == second
    rows += 1
    assert cache.fingerprint(batch, sample_size=8, stage=NETWORK) != second


def test_the_first_indices_continue_after_a_digest():
    order = OrderFingerprint()
    order.add([3, 1])
    order.digests()
    order.add([2, *range(100)])
    assert order.first_indices == (3, 1, 2, *range(29))
    order.digests()
    assert order.first_indices == (3, 1, 2, *range(29))


def test_the_fingerprint_of_the_python_state_is_equal_in_all_processes():
    state = random.getstate()
    try:
        random.seed(1)
        _, python_fingerprint, _ = random_state_fingerprints()
    finally:
        random.setstate(state)
    assert python_fingerprint == 2575569746
