"""Memory-mapped arrays of .npy files, mapped once per process."""

import os
import pickle

import numpy as np
import pytest

from sluice.base.errors import SourceError
from sluice.data.rows import npy_file
from sluice.data.rows.npy_file import MappedArray, NpyWriter


@pytest.fixture
def path(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(12).reshape(4, 3))
    return tmp_path / "a.npy"


def test_array_written_in_parts_is_read_as_one_array(tmp_path):
    with (tmp_path / "parts.npy").open("xb") as file:
        writer = NpyWriter(file, np.uint16, (2,))
        writer.append(np.array([[1, 2]]))
        writer.append(np.array([[3, 4], [5, 6]]))
        writer.finish()

    mapped = MappedArray(tmp_path / "parts.npy")

    assert (mapped.shape, len(mapped), mapped.dtype) == ((3, 2), 3, np.uint16)
    assert mapped.array.tolist() == np.load(tmp_path / "parts.npy").tolist()


def test_arrays_of_one_file_and_unpickled_copies_share_one_mapping(path):
    first, second = MappedArray(path), MappedArray(path)
    copy = pickle.loads(pickle.dumps(first))

    assert first.array is second.array is copy.array
    assert MappedArray(path, dtype=np.int64).array is not first.array


def test_unused_mapping_is_closed(path):
    before = len(npy_file._open_arrays)
    mapped = MappedArray(path)
    assert len(npy_file._open_arrays) == before + 1

    del mapped
    assert len(npy_file._open_arrays) == before


def test_replaced_file_is_mapped_again_and_its_shape_checked(path):
    original = MappedArray(path)
    pickled = pickle.dumps(original)
    np.save(path.with_name("new.npy"), np.zeros((4, 3), dtype=int))
    os.replace(path.with_name("new.npy"), path)

    assert MappedArray(path).array.sum() == 0
    assert original.array.sum() == 66
    np.save(path.with_name("new.npy"), np.zeros((5, 3), dtype=int))
    os.replace(path.with_name("new.npy"), path)
    with pytest.raises(SourceError, match=r"must contain int64 \(4, 3\), but contains"):
        _ = pickle.loads(pickled).array
