"""Writing of token folders: a stream of documents, written completely or not at all."""

import itertools
import os
import signal
import subprocess
import sys
import time
import tracemalloc

import numpy as np
import pytest

from sluice.base.errors import ContractError, StorageError
from sluice.data.rows import write_tokens


def test_ids_and_offsets_are_stored_as_npy_arrays(tmp_path):
    documents = [[1, 2, 3], np.array([4], np.int32), (5, 0)]

    assert write_tokens(tmp_path / "t", documents, vocab_size=65_536) == 3

    tokens, offsets = (
        np.load(tmp_path / "t" / "tokens.npy"),
        np.load(tmp_path / "t" / "offsets.npy"),
    )
    assert (tokens.dtype, tokens.tolist()) == (np.uint16, [1, 2, 3, 4, 5, 0])
    assert (offsets.dtype, offsets.tolist()) == (np.int64, [0, 3, 4, 6])


def test_ids_of_a_vocabulary_above_65536_are_stored(tmp_path):
    write_tokens(tmp_path / "t", [[65_536]], vocab_size=65_537)

    assert np.load(tmp_path / "t" / "tokens.npy").tolist() == [65_536]


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([[1], [], [2]], "document 1 has no token"),
        ([[1], [2, 9, 10]], "got 10 at document 1, position 2"),
        ([[1], [2, -1]], "got -1 at document 1, position 1"),
        ([[1.5]], "Document 0 must be a list of integer token ids, got float64"),
        ([[[1]]], r"Document 0 must be .* got int64 \(1, 1\)"),
        (["text"], "Document 0 must be a list of integer"),
        ([], "at least one document, got none"),
    ],
)
def test_invalid_documents_are_rejected_and_leave_no_files(tmp_path, documents, message):
    with pytest.raises(ContractError, match=message):
        write_tokens(tmp_path / "t", documents, vocab_size=10)

    assert list(tmp_path.iterdir()) == []


def test_existing_folder_is_rejected_and_unchanged(tmp_path):
    write_tokens(tmp_path / "t", [[1]], vocab_size=2)

    with pytest.raises(ContractError, match="exists already"):
        write_tokens(tmp_path / "t", [[0]], vocab_size=2)
    assert np.load(tmp_path / "t" / "tokens.npy").tolist() == [1]


def test_folder_that_cannot_be_created_is_reported(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(StorageError, match="file/t"):
        write_tokens(tmp_path / "file" / "t", [[1]], vocab_size=2)


def test_memory_does_not_grow_with_the_number_of_documents(tmp_path):
    document = list(range(1_000))

    def measure_peak(count):
        tracemalloc.start()
        try:
            write_tokens(tmp_path / f"{count}", itertools.repeat(document, count), vocab_size=1_000)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak_of_few, peak_of_many = measure_peak(200), measure_peak(4_000)

    assert peak_of_many < 1.1 * peak_of_few + 100_000


PROGRAM = """
import itertools, sys
from sluice.data.rows import write_tokens
write_tokens(sys.argv[1], itertools.repeat([1, 2, 3]), vocab_size=4)
"""


@pytest.mark.slow
def test_killed_writer_leaves_no_incomplete_folder(tmp_path):
    writer = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path / "t")])
    while not any(path.stat().st_size > 200_000 for path in tmp_path.glob(".t.*/tokens.npy")):
        assert writer.poll() is None
        time.sleep(0.05)
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()

    assert not (tmp_path / "t").exists()
    assert write_tokens(tmp_path / "t", [[1]], vocab_size=2) == 1
