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
"""Verbs for a singular and for a plural subject."""
PLACES = ["near", "behind", "beside", "above"]
_ADJECTIVES = ["small", "old", "quiet", "young", "happy"]
_ADVERBS = ["often", "rarely", "quietly", "outside", "today"]

END = "."
"""Last word of every sentence."""

_P_ADJECTIVE = 0.4
_P_PLACE = (0.55, 0.35, 0.10)
"""Probabilities of no, one and two phrases of place after the subject."""
_P_ADVERB = 0.3

VOCABULARY = (
    *("the", END),
    *(*SINGULAR, *PLURAL, *VERBS[False], *VERBS[True]),
    *(*PLACES, *_ADJECTIVES, *_ADVERBS),
)
"""All words."""


def generate_sentences(num_sentences: int, *, seed: int) -> Iterator[list[str]]:
    """Yield sentences as lists of words, such as "the dogs near the old house sleep .".

    The verb agrees with the first noun, and up to two phrases of place with other nouns are between
    them: the previous word does not determine the verb.
    """
    rng = np.random.default_rng(seed)

    def draw(words: list[str]) -> str:
        return words[rng.integers(len(words))]

    def noun_phrase() -> tuple[list[str], bool]:
        is_plural = bool(rng.integers(2))
        adjective = [draw(_ADJECTIVES)] if rng.random() < _P_ADJECTIVE else []
        return ["the", *adjective, draw(PLURAL if is_plural else SINGULAR)], is_plural

    for _ in range(num_sentences):
        words, is_plural = noun_phrase()
        for _ in range(rng.choice(len(_P_PLACE), p=_P_PLACE)):
            words += [draw(PLACES), *noun_phrase()[0]]
        words.append(draw(VERBS[is_plural]))
        if rng.random() < _P_ADVERB:
            words.append(draw(_ADVERBS))
        yield [*words, END]


def lowest_perplexity() -> float:
    """Return the perplexity per word of a model that knows the grammar and sees whole sentences.

    It is exp of the entropy of a sentence divided by its mean number of words. The grammar is
    unambiguous: the entropy of a sentence is the sum of the entropies of its choices.
    """
    mean_places = sum(number * p for number, p in enumerate(_P_PLACE))
    noun = math.log(2 * len(SINGULAR)) + _entropy(_P_ADJECTIVE, 1 - _P_ADJECTIVE)
    noun += _P_ADJECTIVE * math.log(len(_ADJECTIVES))
    entropy = (
        (1 + mean_places) * noun
        + _entropy(*_P_PLACE)
        + mean_places * math.log(len(PLACES))
        + math.log(len(VERBS[True]))
        + _entropy(_P_ADVERB, 1 - _P_ADVERB)
        + _P_ADVERB * math.log(len(_ADVERBS))
    )
    mean_words = (1 + mean_places) * (2 + _P_ADJECTIVE) + mean_places + 1 + _P_ADVERB + 1
    return math.exp(entropy / mean_words)


def is_grammatical(words: list[str]) -> bool:
    """Return whether words are a sentence of the grammar, without the ``END`` that follows it."""
    rest = list(words)

    def take(options: list[str]) -> str | None:
        return rest.pop(0) if rest and rest[0] in options else None

    def noun() -> str | None:
        if take(["the"]) is None:
            return None
        take(_ADJECTIVES)
        return take([*SINGULAR, *PLURAL])

    subject = noun()
    num_places = 0
    while subject is not None and take(PLACES) is not None:
        num_places += 1
        if noun() is None:
            return False
    if subject is None or num_places >= len(_P_PLACE):
        return False
    if take(VERBS[subject in PLURAL]) is None:
        return False
    take(_ADVERBS)
    return not rest


def _entropy(*probabilities: float) -> float:
    return -sum(p * math.log(p) for p in probabilities)
