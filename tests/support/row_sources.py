"""Fixtures that check row sources in this process and in another process."""

import multiprocessing
import pickle

import pytest
import torch


def read(source, rows):
    return source[rows]


@pytest.fixture(scope="session")
def spawned():
    """A pool of one process that is spawned, so that it has no copy of this process's memory."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        yield pool


def assert_same(first, second):
    if isinstance(first, torch.Tensor):
        assert first.dtype == second.dtype
        assert torch.equal(first, second)
    else:
        assert first.keys() == second.keys()
        for name in first:
            assert_same(first[name], second[name])


@pytest.fixture
def assert_source(spawned):
    """A function that checks rows in any order, repeated rows, pickling, and invalid positions."""

    def check(source, expected):
        num_rows = len(source)
        order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(0))[:20]
        for rows in (order, torch.cat([order[:1], order, order[:1]])):
            assert_same(source[rows], expected(rows))
        clone = pickle.loads(pickle.dumps(source))
        assert len(clone) == num_rows
        assert_same(clone[order], expected(order))
        assert_same(spawned.apply(read, (source, order)), expected(order))
        for rows in ([-1], [num_rows]):
            with pytest.raises(ValueError, match=rf"from 0 to {num_rows - 1}, got"):
                source[torch.tensor(rows)]
        for rows in (torch.ones(num_rows, dtype=torch.bool), torch.tensor(0), [0], 0):
            with pytest.raises(ValueError, match="positions of examples as an int64 tensor"):
                source[rows]

    return check
