"""Generated reviews of products, whose best possible log loss is known."""

import math

import numpy as np
import pandas as pd

_PRODUCTS = [
    *("kettle", "lamp", "chair", "phone", "camera"),
    *("printer", "keyboard", "backpack", "jacket", "tent"),
]
_ASPECTS = [
    *("price", "colour", "size", "weight", "box"),
    *("manual", "button", "cable", "handle", "delivery"),
]
_GOOD = ["great", "reliable", "comfortable", "excellent", "sturdy", "quiet", "beautiful", "fast"]
_BAD = ["awful", "fragile", "uncomfortable", "terrible", "flimsy", "loud", "ugly", "slow"]
_FACTS = (
    "i bought this {product} in {month}",
    "the {aspect} came with the {product}",
    "my sister owns the same {product}",
    "the {aspect} looks like the one in the picture",
    "it arrived on a {day}",
    "i compared it with another {product} before",
)
_OPINIONS = (
    "the {aspect} is {word}",
    "i find the {product} {word}",
    "all in all it is {word}",
    "the {aspect} turned out to be {word}",
)
_MONTHS = ["january", "march", "may", "july", "september", "november"]
_DAYS = ["monday", "tuesday", "thursday", "saturday", "sunday"]

LABEL_NOISE = 0.05
"""Share of reviews whose label is the opposite of what the text says."""


def generate_reviews(num_reviews: int, *, seed: int) -> pd.DataFrame:
    """Return generated reviews of products, and whether each is positive or negative.

    A review has from one to eight clauses. One of them is an opinion. In half of all reviews it
    negates a word of the other class, as in "not awful", so single words do not determine the
    label. The other clauses are facts.

    Args:
        num_reviews: Number of reviews.
        seed: Seed of the generator.

    Returns:
        Columns text and label (positive or negative). The label agrees with the text except for a
        share of ``LABEL_NOISE`` of all reviews. So no model has an error rate below ``LABEL_NOISE``
        or a log loss below ``lowest_log_loss``.
    """
    rng = np.random.default_rng(seed)
    texts, labels = [], []
    for _ in range(num_reviews):
        is_positive = bool(rng.integers(2))
        clauses = [_fill_template(rng, _FACTS) for _ in range(rng.integers(8))]
        clauses.insert(
            int(rng.integers(len(clauses) + 1)), _make_opinion(rng, is_positive=is_positive)
        )
        texts.append(", ".join(clauses) + ".")
        labels.append("positive" if is_positive != (rng.random() < LABEL_NOISE) else "negative")
    return pd.DataFrame({"text": texts, "label": labels})


def lowest_log_loss() -> float:
    """Return the log loss of a model that understands every review [nats]."""
    return -(LABEL_NOISE * math.log(LABEL_NOISE) + (1 - LABEL_NOISE) * math.log(1 - LABEL_NOISE))


def _make_opinion(rng: np.random.Generator, *, is_positive: bool) -> str:
    is_negated = bool(rng.integers(2))
    words = _GOOD if is_positive != is_negated else _BAD
    word = words[rng.integers(len(words))]
    return _fill_template(rng, _OPINIONS, word=f"not {word}" if is_negated else word)


def _fill_template(rng: np.random.Generator, templates: tuple[str, ...], word: str = "") -> str:
    def draw(values: list[str]) -> str:
        return values[rng.integers(len(values))]

    return templates[rng.integers(len(templates))].format(
        product=draw(_PRODUCTS),
        aspect=draw(_ASPECTS),
        month=draw(_MONTHS),
        day=draw(_DAYS),
        word=word,
    )
