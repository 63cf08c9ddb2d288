"""Row sources of token ids: padded documents and packed blocks."""

import numpy as np
import pytest
import torch

from sluice.base.errors import ContractError, SourceError
from sluice.data.rows import SubsetRows, TokenBlocks, TokenRows, write_tokens

VOCAB = 300


@pytest.fixture
def documents():
    rng = np.random.default_rng(0)
    return [rng.integers(1, VOCAB, length).tolist() for length in rng.integers(1, 60, 200)]


@pytest.fixture
def folder(documents, tmp_path):
    assert write_tokens(tmp_path / "tokens", iter(documents), vocab_size=VOCAB) == 200
    return tmp_path / "tokens"


def pad_documents(documents, rows, *, pad_id=0, max_len=None, length=None):
    """Return the expected ids and mask, built in a loop over the documents."""
    truncated = [documents[row][:max_len] for row in rows]
    length = length or max(map(len, truncated), default=0)
    ids = torch.full((len(truncated), length), pad_id)
    mask = torch.zeros(len(truncated), length, dtype=torch.bool)
    for number, document in enumerate(truncated):
        ids[number, : len(document)] = torch.tensor(document)
        mask[number, : len(document)] = True
    return {"ids": ids, "mask": mask}


def test_documents_are_padded_to_the_longest_document_of_the_batch(
    folder, documents, assert_source
):
    assert_source(
        TokenRows(folder, vocab_size=VOCAB, pad_id=7),
        lambda rows: pad_documents(documents, rows, pad_id=7),
    )


def test_documents_are_truncated_to_max_len(folder, documents, assert_source):
    source = TokenRows(folder, vocab_size=VOCAB, max_len=20)

    assert_source(source, lambda rows: pad_documents(documents, rows, max_len=20))
    assert source.lengths.tolist() == [min(len(document), 20) for document in documents]


def test_fixed_length_and_tensor_names_are_configurable(folder, documents):
    source = TokenRows(
        folder, vocab_size=VOCAB, max_len=90, pad_to="max_len", names=("input_ids", "attention")
    )
    rows = torch.tensor([3, 5])
    expected = pad_documents(documents, rows, length=90)

    batch = source[rows]

    assert list(batch) == ["input_ids", "attention"]
    assert torch.equal(batch["input_ids"], expected["ids"])
    assert torch.equal(batch["attention"], expected["mask"])


def test_lengths_are_those_of_the_documents(folder, documents):
    source, rows = TokenRows(folder, vocab_size=VOCAB), torch.tensor([9, 9, 0])

    assert source.lengths.tolist() == list(map(len, documents))
    assert source.lengths_of(rows).tolist() == [len(documents[row]) for row in rows]
    subset = SubsetRows(source, torch.tensor([4, 9]))
    assert subset.lengths_of(torch.tensor([1])).tolist() == [len(documents[9])]


def test_raw_binary_file_is_read_with_dtype_and_offsets(documents, tmp_path, assert_source):
    np.concatenate(documents).astype(np.uint16).tofile(tmp_path / "train.bin")
    np.save(tmp_path / "offsets.npy", np.cumsum([0, *map(len, documents)]))

    source = TokenRows(
        tmp_path / "train.bin",
        vocab_size=VOCAB,
        dtype=np.uint16,
        offsets=tmp_path / "offsets.npy",
    )

    assert_source(source, lambda rows: pad_documents(documents, rows))


@pytest.mark.parametrize("block_len", [1, 16, 333])
def test_blocks_are_consecutive_and_offset_1_gives_the_next_tokens(
    folder, documents, assert_source, block_len
):
    all_tokens = torch.tensor([token for document in documents for token in document])
    count = (len(all_tokens) - 1) // block_len
    for offset in (0, 1):
        source = TokenBlocks(folder, vocab_size=VOCAB, block_len=block_len, offset=offset)
        blocks = all_tokens[offset : offset + count * block_len].view(count, block_len)

        assert len(source) == count
        assert_source(source, lambda rows, blocks=blocks: blocks[rows])


def test_last_incomplete_block_is_dropped_or_padded(tmp_path):
    write_tokens(tmp_path / "t", [[1, 2, 3, 4, 5, 6]], vocab_size=10)

    def read_blocks(offset, last, pad_id=0):
        source = TokenBlocks(
            tmp_path / "t", vocab_size=10, block_len=3, offset=offset, last=last, pad_id=pad_id
        )
        return source[torch.arange(len(source))].tolist()

    assert (read_blocks(0, "drop"), read_blocks(1, "drop")) == ([[1, 2, 3]], [[2, 3, 4]])
    assert read_blocks(0, "pad") == [[1, 2, 3], [4, 5, 0]]
    assert read_blocks(1, "pad", -100) == [[2, 3, 4], [5, 6, -100]]


def test_text_shorter_than_one_block_is_rejected(tmp_path):
    write_tokens(tmp_path / "t", [[1, 2, 3]], vocab_size=10)

    with pytest.raises(ContractError, match=r"at least 4 tokens for one block of 3.*, got 3"):
        TokenBlocks(tmp_path / "t", vocab_size=10, block_len=3)


def test_id_outside_the_vocabulary_is_reported_with_its_position(folder, documents):
    smaller = max(max(document) for document in documents)
    row = next(n for n, document in enumerate(documents) if smaller in document)
    location = f"got {smaller} at document {row}, position {documents[row].index(smaller)} of"

    for open_source in (TokenRows, lambda *a, **k: TokenBlocks(*a, block_len=8, **k)):
        with pytest.raises(ContractError, match=location):
            open_source(folder, vocab_size=smaller)


def test_ids_changed_after_opening_are_checked_when_read(folder):
    """The folder records a checked vocabulary; ids that change afterwards are still detected."""
    source = TokenRows(folder, vocab_size=VOCAB)
    tokens = np.load(folder / "tokens.npy", mmap_mode="r+")
    tokens[int(source.lengths[:4].sum())] = VOCAB
    tokens.flush()

    source[torch.tensor([3])]
    with pytest.raises(ContractError, match=f"got {VOCAB} at document 4, position 0 of"):
        source[torch.tensor([3, 4])]


def test_external_token_file_is_checked_in_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr("sluice.data.rows.token_corpus._CHUNK_TOKENS", 3)
    np.save(tmp_path / "t.npy", np.array([0, 1, 2, 3, 4, 5, 6, 9, 1], np.uint32))
    np.save(tmp_path / "o.npy", np.array([0, 6, 9]))

    with pytest.raises(ContractError, match="got 9 at document 1, position 1 of"):
        TokenRows(tmp_path / "t.npy", offsets=tmp_path / "o.npy", vocab_size=9)
    with pytest.raises(ContractError, match="got 9 at position 7 of"):
        TokenBlocks(tmp_path / "t.npy", block_len=2, vocab_size=9)
    TokenRows(tmp_path / "t.npy", offsets=tmp_path / "o.npy", vocab_size=10)


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 4, 4, 9], "every document must have at least one token, but document 1 has no token"),
        ([0, 9, 4, 9], "must increase, but decrease after document 1"),
        ([0, 4, 8], "end with the number of tokens, 9, got 0 and 8"),
        ([1, 9], "must begin with 0"),
        ([0], r"must contain int64 \(documents \+ 1,\)"),
        ([0.0, 9.0], "must contain int64"),
    ],
)
def test_invalid_offsets_are_rejected(tmp_path, monkeypatch, offsets, message):
    monkeypatch.setattr("sluice.data.rows.token_corpus._CHUNK_TOKENS", 1)
    np.save(tmp_path / "t.npy", np.zeros(9, np.uint16))
    np.save(tmp_path / "o.npy", np.array(offsets))

    with pytest.raises(ContractError, match=f"(?i){message}"):
        TokenRows(tmp_path / "t.npy", offsets=tmp_path / "o.npy", vocab_size=9)


def test_token_rows_without_offsets_are_rejected(tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(9, np.uint16))

    with pytest.raises(ContractError, match="has no documents, because it has no offsets"):
        TokenRows(tmp_path / "t.npy", vocab_size=9)


@pytest.mark.parametrize(
    "settings",
    [{"max_len": 0}, {"pad_id": -1}, {"pad_id": VOCAB}, {"pad_to": "max_len"}, {"pad_to": "batch"}],
)
def test_invalid_setting_is_rejected(folder, settings):
    with pytest.raises(ContractError, match=r"'(max_len|pad_id|pad_to)' must be"):
        TokenRows(folder, vocab_size=VOCAB, **settings)


def test_missing_file_is_reported(tmp_path):
    with pytest.raises(SourceError, match="There is no file"):
        TokenRows(tmp_path / "none", vocab_size=9)
