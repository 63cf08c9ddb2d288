"""Row source of texts that are tokenized when they are read."""

import pytest
import torch

from sluice.base.errors import ContractError
from sluice.data.rows import TextRows, TokenRows, write_tokens
from sluice.data.tokenizer import WordTokenizer
from tests.support.row_sources import assert_same

TEXTS = [" ".join(f"w{(n * k) % 17}" for k in range(1, 3 + n % 9)) for n in range(40)]
TOKENIZER = WordTokenizer.build(TEXTS, max_words=12)


def make_rows(**changes) -> TextRows:
    arguments = {"vocab_size": TOKENIZER.vocab_size, "max_len": 6} | changes
    return TextRows(TEXTS, TOKENIZER.encode, **arguments)


def test_text_rows_equal_rows_of_stored_tokens(tmp_path, assert_source):
    write_tokens(tmp_path / "tokens", (TOKENIZER.encode(text) for text in TEXTS), vocab_size=12)
    token_rows = TokenRows(tmp_path / "tokens", vocab_size=12, max_len=6)

    assert_source(make_rows(), lambda positions: token_rows[positions])
    all_rows = torch.arange(len(TEXTS))
    assert_same(make_rows().lengths_of(all_rows), token_rows.lengths)
    assert set(make_rows(names=("x", "keep"))[all_rows]) == {"x", "keep"}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a", None], "got None for row 1"),
        (["a", float("nan")], "got nan for row 1"),
        ([], "got none"),
    ],
)
def test_missing_or_no_texts_are_rejected(texts, message):
    with pytest.raises(ContractError, match=message):
        TextRows(texts, TOKENIZER.encode, vocab_size=12)


def test_empty_text_and_id_outside_the_vocabulary_are_reported():
    texts = ["w1", "  "]
    with pytest.raises(ContractError, match=r"text 1 \('  '\) has no token"):
        TextRows(texts, TOKENIZER.encode, vocab_size=12)[torch.tensor([0, 1])]
    with pytest.raises(ContractError, match=r"from 0 to 2 .* got \d+ at position 0 of text 0"):
        TextRows(texts, TOKENIZER.encode, vocab_size=3)[torch.tensor([0])]
