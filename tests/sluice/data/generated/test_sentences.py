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


def test_every_sentence_is_grammatical_and_no_verb_fits_the_other_number():
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
def test_other_texts_are_not_grammatical(text):
    assert not is_grammatical(text.split())


@pytest.mark.slow
def test_the_lowest_perplexity_is_the_entropy_of_sentences():
    """Against the entropy of the observed shares, with the bias correction of Miller (1955).

    The sentences are grouped by their kind of words, because there are too many sentences; given
    the kinds, every word is drawn evenly.
    """
    kinds = {word: kind for kind, words in _KINDS.items() for word in words}
    sizes = {kind: len(words) for kind, words in _KINDS.items()}
    shapes: Counter[tuple[str, ...]] = Counter()
    num_words = 0
    for words in generate_sentences(20_000, seed=5):
        shapes[tuple(kinds[word] for word in words)] += 1
        num_words += len(words)
    total = shapes.total()
    entropy = -sum(n / total * math.log(n / total) for n in shapes.values())
    entropy += (len(shapes) - 1) / (2 * total)
    entropy += sum(
        n / total * sum(math.log(sizes[kind]) for kind in shape) for shape, n in shapes.items()
    )

    assert lowest_perplexity() == pytest.approx(math.exp(entropy / (num_words / total)), rel=0.01)


_KINDS = {
    "the": ["the"],
    "end": ["."],
    "one": ["dog", "cat", "bird", "child", "teacher", "farmer", "painter", "neighbour"],
    "many": ["dogs", "cats", "birds", "children", "teachers", "farmers", "painters", "neighbours"],
    "verb1": ["sleeps", "sings", "waits", "laughs", "works", "reads"],
    "verb2": ["sleep", "sing", "wait", "laugh", "work", "read"],
    "place": ["near", "behind", "beside", "above"],
    "adjective": ["small", "old", "quiet", "young", "happy"],
    "adverb": ["often", "rarely", "quietly", "outside", "today"],
}


def test_every_word_has_a_kind():
    assert sorted(itertools.chain(*_KINDS.values())) == sorted(VOCABULARY)
