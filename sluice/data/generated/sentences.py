"""Generated English sentences from a small grammar, whose lowest possible perplexity is known."""

import math
from collections.abc import Iterator

import numpy as np

SINGULAR = ["dog", "cat", "bird", "child", "teacher", "farmer", "painter", "neighbour"]
PLURAL = ["dogs", "cats", "birds", "children", "teachers", "farmers", "painters", "neighbours"]
VERBS = {
    False: ["sleeps", "sings", "waits", "laughs", "works", "reads"],
    True: ["sleep", "sing", "wait", "laugh", "work", "read"],
}
"""Verbs by whether the subject is plural."""
PLACES = ["near", "behind", "beside", "above"]
_ADJECTIVES = ["small", "old", "quiet", "young", "happy"]
_ADVERBS = ["often", "rarely", "quietly", "outside", "today"]

END = "."
"""Last word of every sentence."""

_ADJECTIVE_PROBABILITY = 0.4
_PLACE_PROBABILITIES = (0.55, 0.35, 0.10)
"""Probabilities of no, one and two phrases of place after the subject."""
_ADVERB_PROBABILITY = 0.3

VOCABULARY = (
    *("the", END),
    *(*SINGULAR, *PLURAL, *VERBS[False], *VERBS[True]),
    *(*PLACES, *_ADJECTIVES, *_ADVERBS),
)
"""All words."""


def generate_sentences(num_sentences: int, *, seed: int) -> Iterator[list[str]]:
    """Yield sentences as lists of words, such as "the dogs near the old house sleep .".

    The verb agrees with the first noun. Up to two phrases of place with other nouns are between
    subject and verb, so the previous word does not determine the verb.
    """
    rng = np.random.default_rng(seed)

    def draw(words: list[str]) -> str:
        return words[rng.integers(len(words))]

    def noun_phrase() -> tuple[list[str], bool]:
        is_plural = bool(rng.integers(2))
        adjective = [draw(_ADJECTIVES)] if rng.random() < _ADJECTIVE_PROBABILITY else []
        return ["the", *adjective, draw(PLURAL if is_plural else SINGULAR)], is_plural

    for _ in range(num_sentences):
        words, is_plural = noun_phrase()
        for _ in range(rng.choice(len(_PLACE_PROBABILITIES), p=_PLACE_PROBABILITIES)):
            words += [draw(PLACES), *noun_phrase()[0]]
        words.append(draw(VERBS[is_plural]))
        if rng.random() < _ADVERB_PROBABILITY:
            words.append(draw(_ADVERBS))
        yield [*words, END]


def lowest_perplexity() -> float:
    """Return the perplexity per word of a model that knows the grammar and sees whole sentences.

    It is ``exp(entropy of a sentence / mean number of words of a sentence)``. The grammar is
    unambiguous, so the entropy of a sentence is the sum of the entropies of its choices.
    """
    mean_places = sum(number * p for number, p in enumerate(_PLACE_PROBABILITIES))
    noun_phrase_entropy = math.log(2 * len(SINGULAR)) + _entropy(
        _ADJECTIVE_PROBABILITY, 1 - _ADJECTIVE_PROBABILITY
    )
    noun_phrase_entropy += _ADJECTIVE_PROBABILITY * math.log(len(_ADJECTIVES))
    sentence_entropy = (
        (1 + mean_places) * noun_phrase_entropy
        + _entropy(*_PLACE_PROBABILITIES)
        + mean_places * math.log(len(PLACES))
        + math.log(len(VERBS[True]))
        + _entropy(_ADVERB_PROBABILITY, 1 - _ADVERB_PROBABILITY)
        + _ADVERB_PROBABILITY * math.log(len(_ADVERBS))
    )
    mean_words = (
        (1 + mean_places) * (2 + _ADJECTIVE_PROBABILITY) + mean_places + 1 + _ADVERB_PROBABILITY + 1
    )
    return math.exp(sentence_entropy / mean_words)


def is_grammatical(words: list[str]) -> bool:
    """Return whether words are a sentence of the grammar, without the ``END`` that follows it."""
    remaining = list(words)

    def take(options: list[str]) -> str | None:
        return remaining.pop(0) if remaining and remaining[0] in options else None

    def take_noun_phrase() -> str | None:
        if take(["the"]) is None:
            return None
        take(_ADJECTIVES)
        return take([*SINGULAR, *PLURAL])

    subject = take_noun_phrase()
    num_places = 0
    while subject is not None and take(PLACES) is not None:
        num_places += 1
        if take_noun_phrase() is None:
            return False
    if subject is None or num_places >= len(_PLACE_PROBABILITIES):
        return False
    if take(VERBS[subject in PLURAL]) is None:
        return False
    take(_ADVERBS)
    return not remaining


def _entropy(*probabilities: float) -> float:
    return -sum(p * math.log(p) for p in probabilities)
