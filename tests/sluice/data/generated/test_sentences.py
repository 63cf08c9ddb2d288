"""Generated sentences, their grammar and their entropy."""

import itertools
import math
from collections import Counter

import pytest

from sluice.data.generated.sentences import (
    END,
    VOCABULARY,
    generate_sentences,
    is_grammatical,
    lowest_perplexity,
)


def test_generated_sentences_are_grammatical_only_with_the_agreeing_verb():
    plural = {"sleeps": "sleep", "sings": "sing", "waits": "wait"}
    plural |= {"laughs": "laugh", "works": "work", "reads": "read"}
    other_number = plural | {value: key for key, value in plural.items()}

    for words in generate_sentences(500, seed=0):
        assert words[-1] == END
        assert is_grammatical(words[:-1])
        assert not is_grammatical([other_number.get(word, word) for word in words[:-1]])
        assert set(words) <= set(VOCABULARY)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "the",
        "dog sleeps",
        "the dog",
        "the dog sleeps sleeps",
        "the dog near the cats near the cat near the bird sleeps",
        "the dog near sleeps",
        "the dog often sleeps",
        "the dogs near the cat sleeps",
    ],
)
def test_ungrammatical_texts_are_detected(text):
    assert not is_grammatical(text.split())


@pytest.mark.slow
def test_lowest_perplexity_equals_the_entropy_of_generated_sentences():
    """The expected entropy is estimated with the bias correction of Miller (1955).

    There are too many different sentences to count each, so they are counted by the pattern of
    their word classes; within a class, words are drawn uniformly.
    """
    word_classes = {
        word: word_class for word_class, words in _WORDS_BY_CLASS.items() for word in words
    }
    class_sizes = {word_class: len(words) for word_class, words in _WORDS_BY_CLASS.items()}
    patterns: Counter[tuple[str, ...]] = Counter()
    num_words = 0
    for words in generate_sentences(20_000, seed=5):
        patterns[tuple(word_classes[word] for word in words)] += 1
        num_words += len(words)
    total = patterns.total()
    entropy = -sum(n / total * math.log(n / total) for n in patterns.values())
    entropy += (len(patterns) - 1) / (2 * total)
    entropy += sum(
        n / total * sum(math.log(class_sizes[word_class]) for word_class in pattern)
        for pattern, n in patterns.items()
    )

    assert lowest_perplexity() == pytest.approx(math.exp(entropy / (num_words / total)), rel=0.01)


_WORDS_BY_CLASS = {
    "the": ["the"],
    "end": ["."],
    "singular": ["dog", "cat", "bird", "child", "teacher", "farmer", "painter", "neighbour"],
    "plural": [
        "dogs",
        "cats",
        "birds",
        "children",
        "teachers",
        "farmers",
        "painters",
        "neighbours",
    ],
    "singular verb": ["sleeps", "sings", "waits", "laughs", "works", "reads"],
    "plural verb": ["sleep", "sing", "wait", "laugh", "work", "read"],
    "preposition": ["near", "behind", "beside", "above"],
    "adjective": ["small", "old", "quiet", "young", "happy"],
    "adverb": ["often", "rarely", "quietly", "outside", "today"],
}


def test_word_classes_cover_the_vocabulary():
    assert sorted(itertools.chain(*_WORDS_BY_CLASS.values())) == sorted(VOCABULARY)
