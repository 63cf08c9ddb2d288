"""Tokenizers of training and serving (TRACE-3)."""

import copy

import pytest

from sluice.base.errors import ContractError
from sluice.probes.tokenizers import probe_tokenizers

WORDS = ["<pad>", "<unk>", "<s>", "the", "quick", "fox", "don't", "word"]


class Words:
    """As small as a tokenizer gets, with the names that Hugging Face's have."""

    def __init__(self, words=WORDS, *, lower=True, longest=64):
        self.vocab = {word: number for number, word in enumerate(words)}
        self.special_tokens_map = {"pad_token": "<pad>", "unk_token": "<unk>"}
        self.pad_token_id = 0
        self.padding_side = "right"
        self.truncation_side = "right"
        self.model_max_length = longest
        self.lower = lower

    def get_vocab(self):
        return dict(self.vocab)

    def encode(self, text):
        words = (text.lower() if self.lower else text).split()
        return [self.vocab.get(word, 1) for word in words][: self.model_max_length]


class Encoding:
    def __init__(self, ids):
        self.ids = ids


class OfObjects(Words):
    def encode(self, text):
        return Encoding(super().encode(text))


def changed(**values):
    tokenizer = Words()
    for name, value in values.items():
        setattr(tokenizer, name, value)
    return tokenizer


@pytest.mark.parametrize("serving", [Words(), OfObjects(), copy.deepcopy(Words())])
def test_the_same_tokenizer_passes(serving):
    answer = probe_tokenizers(Words(), serving)

    assert answer.outcome == "pass"
    assert answer.numbers["vocabulary"] == len(WORDS)


@pytest.mark.parametrize(
    ("serving", "said"),
    [
        (Words([*WORDS[:4], "fox", "quick", *WORDS[6:]]), "token 'quick' is 4 in training and 5"),
        (Words(WORDS[:-1]), "token 'word' is 7 in training and none in serving"),
        (Words([*WORDS, "new"]), "serving has 'new' (8), which training lacks"),
        (changed(special_tokens_map={"pad_token": "<s>"}), "First difference, special tokens: "),
        (changed(pad_token_id=2), "pad_token_id is 0 in training and 2 in serving"),
        (changed(padding_side="left"), "padding_side is 'right' in training and 'left'"),
        (changed(truncation_side="left"), "truncation_side is 'right' in training and 'left'"),
        (Words(longest=32), "model_max_length is 64 in training and 32"),
        (Words(lower=False), "'The quick brown fox jumps over 13 lazy d' has id 3 in training"),
    ],
)
def test_the_first_difference_is_named(serving, said):
    answer = probe_tokenizers(Words(), serving)

    assert answer.outcome == "fail"
    assert said in answer.seen
    assert "stored with the trained model" in answer.fix


def test_the_attribute_that_differs_is_named_and_not_its_alternative():
    training, serving = changed(max_length=64), changed(max_length=32)
    for tokenizer in (training, serving):
        del tokenizer.model_max_length
        tokenizer.encode = lambda text: [len(text)]

    answer = probe_tokenizers(training, serving)

    assert "truncation: max_length is 64 in training and 32 in serving" in answer.seen


def test_truncation_is_seen_in_the_ids_when_nothing_declares_it():
    class Cutting(Words):
        def encode(self, text):
            return super().encode(text)[:10]

    answer = probe_tokenizers(Words(), Cutting())

    assert "has id 7 in training and no id in serving at position 10 (64 and 10 ids)" in answer.seen


def test_without_a_vocabulary_or_texts_nothing_is_decided():
    class Bare:
        def encode(self, text):
            return [len(text)]

    assert probe_tokenizers(Bare(), Bare()).outcome == "insufficient"
    assert probe_tokenizers(Words(), Words(), texts=()).outcome == "insufficient"


def test_bad_tokenizers_are_refused():
    class NoIds(Words):
        def encode(self, text):
            return text.split()

    class Raises(Words):
        def encode(self, text):
            raise KeyError(text)

    with pytest.raises(ContractError, match=r"serving tokenizer must have encode\(text\), got str"):
        probe_tokenizers(Words(), "bert")
    with pytest.raises(ContractError, match="must return ids"):
        probe_tokenizers(Words(), NoIds())
    with pytest.raises(ContractError, match="raised KeyError"):
        probe_tokenizers(Raises(), Words())
