"""Vocabulary, encoding and files of WordTokenizer."""

import pytest

from sluice.base.errors import ContractError, SourceError
from sluice.data.tokenizer import PADDING, UNKNOWN, WordTokenizer, split_words


def test_vocabulary_has_the_most_frequent_words_in_a_stable_order():
    texts = ["b a, a c", "c b a d"]
    tokenizer = WordTokenizer.build(texts, max_words=5)

    assert tokenizer.words == (PADDING, UNKNOWN, "a", "b", "c")
    assert WordTokenizer.build(reversed(texts), max_words=5).digest == tokenizer.digest
    assert WordTokenizer.build(texts, max_words=50, min_count=3).words[2:] == ("a",)
    assert tokenizer.encode("A  b zebra,") == [2, 3, 1, 1]
    assert tokenizer.decode([2, 3, 1]) == f"a b {UNKNOWN}"
    assert (tokenizer.encode(" \n"), tokenizer.vocab_size) == ([], 5)


def test_punctuation_is_split_off_and_non_ascii_letters_are_kept():
    assert split_words("Don't, 3.5 Gr\u00fc\u00dfe") == [
        "don",
        "'",
        "t",
        ",",
        "3",
        ".",
        "5",
        "gr\u00fc\u00dfe",
    ]


def test_saved_tokenizer_is_loaded_unchanged(tmp_path):
    tokenizer = WordTokenizer.build(['gr\u00fcn "quoted" words'], max_words=10)
    tokenizer.save(tmp_path / "words.json")

    loaded = WordTokenizer.load(tmp_path / "words.json")
    assert (loaded.words, loaded.digest) == (tokenizer.words, tokenizer.digest)


@pytest.mark.parametrize("content", ["", "{}", "[1, 2]", '["<pad>", "<unk>"'])
def test_invalid_or_missing_file_is_rejected(tmp_path, content):
    (tmp_path / "words.json").write_text(content)

    with pytest.raises(SourceError, match=r"words\.json"):
        WordTokenizer.load(tmp_path / "words.json")
    with pytest.raises(SourceError, match=r"none\.json cannot be read"):
        WordTokenizer.load(tmp_path / "none.json")


@pytest.mark.parametrize("words", [[], ["a", "b"], [PADDING, UNKNOWN, "a", "a"]])
def test_invalid_vocabulary_is_rejected(words):
    with pytest.raises(ContractError, match="must begin with <pad> and <unk>"):
        WordTokenizer(words)
