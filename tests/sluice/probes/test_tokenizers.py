"""The probe that compares the tokenizers of training and serving (TRACE-3)."""

import copy

import pytest

from sluice.base.errors import ContractError
from sluice.probes.tokenizers import probe_tokenizers

VOCABULARY = ["<pad>", "<unk>", "<s>", "the", "quick", "fox", "don't", "word"]


class WordTokenizer:
    """A minimal word tokenizer with the attribute names of Hugging Face tokenizers."""

    def __init__(self, words=VOCABULARY, *, lower=True, max_length=64):
        self.vocab = {word: number for number, word in enumerate(words)}
        self.special_tokens_map = {"pad_token": "<pad>", "unk_token": "<unk>"}
        self.pad_token_id = 0
        self.padding_side = "right"
        self.truncation_side = "right"
        self.model_max_length = max_length
        self.lower = lower

    def get_vocab(self):
        return dict(self.vocab)

    def encode(self, text):
        words = (text.lower() if self.lower else text).split()
        return [self.vocab.get(word, 1) for word in words][: self.model_max_length]


class Encoding:
    def __init__(self, ids):
        self.ids = ids


class EncodingTokenizer(WordTokenizer):
    def encode(self, text):
        return Encoding(super().encode(text))


def change_tokenizer(**values):
    tokenizer = WordTokenizer()
    for name, value in values.items():
        setattr(tokenizer, name, value)
    return tokenizer


@pytest.mark.parametrize(
    "serving", [WordTokenizer(), EncodingTokenizer(), copy.deepcopy(WordTokenizer())]
)
def test_the_same_tokenizer_passes(serving):
    result = probe_tokenizers(WordTokenizer(), serving)

    assert result.outcome == "pass"
    assert result.numbers["vocabulary"] == len(VOCABULARY)


@pytest.mark.parametrize(
    ("serving", "message"),
    [
        (
            WordTokenizer([*VOCABULARY[:4], "fox", "quick", *VOCABULARY[6:]]),
            "token 'quick' is 4 in training and 5",
        ),
        (WordTokenizer(VOCABULARY[:-1]), "token 'word' is 7 in training and none in serving"),
        (WordTokenizer([*VOCABULARY, "new"]), "only serving has the token 'new' (id 8)"),
        (
            change_tokenizer(special_tokens_map={"pad_token": "<s>"}),
            "First difference, special tokens: ",
        ),
        (change_tokenizer(pad_token_id=2), "pad_token_id is 0 in training and 2 in serving"),
        (change_tokenizer(padding_side="left"), "padding_side is 'right' in training and 'left'"),
        (
            change_tokenizer(truncation_side="left"),
            "truncation_side is 'right' in training and 'left'",
        ),
        (WordTokenizer(max_length=32), "model_max_length is 64 in training and 32"),
        (
            WordTokenizer(lower=False),
            "'The quick brown fox jumps over 13 lazy d' has id 3 in training",
        ),
    ],
)
def test_the_first_difference_is_reported(serving, message):
    result = probe_tokenizers(WordTokenizer(), serving)

    assert result.outcome == "fail"
    assert message in result.seen
    assert "stored with the trained model" in result.fix


def test_only_the_attribute_that_differs_is_reported():
    training, serving = change_tokenizer(max_length=64), change_tokenizer(max_length=32)
    for tokenizer in (training, serving):
        del tokenizer.model_max_length
        tokenizer.encode = lambda text: [len(text)]

    result = probe_tokenizers(training, serving)

    assert "truncation: max_length is 64 in training and 32 in serving" in result.seen


def test_undeclared_truncation_is_detected_in_the_token_ids():
    class Truncating(WordTokenizer):
        def encode(self, text):
            return super().encode(text)[:10]

    result = probe_tokenizers(WordTokenizer(), Truncating())

    assert "has id 7 in training and no id in serving at position 10 (64 ids in" in result.seen


def test_a_comparison_without_vocabulary_or_texts_is_insufficient():
    class WithoutVocabulary:
        def encode(self, text):
            return [len(text)]

    assert probe_tokenizers(WithoutVocabulary(), WithoutVocabulary()).outcome == "insufficient"
    assert probe_tokenizers(WordTokenizer(), WordTokenizer(), texts=()).outcome == "insufficient"


def test_invalid_tokenizers_are_rejected():
    class NoIds(WordTokenizer):
        def encode(self, text):
            return text.split()

    class Raises(WordTokenizer):
        def encode(self, text):
            raise KeyError(text)

    with pytest.raises(ContractError, match=r"serving tokenizer must have encode\(text\), got str"):
        probe_tokenizers(WordTokenizer(), "bert")
    with pytest.raises(ContractError, match="must return ids"):
        probe_tokenizers(WordTokenizer(), NoIds())
    with pytest.raises(ContractError, match="raised KeyError"):
        probe_tokenizers(Raises(), WordTokenizer())
