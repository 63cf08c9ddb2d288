import math

import pytest

from sluice.data.generated.reviews import (
    LABEL_NOISE,
    generate_reviews,
    lowest_log_loss,
)

GOOD = {"great", "reliable", "comfortable", "excellent", "sturdy", "quiet", "beautiful", "fast"}
BAD = {"awful", "fragile", "uncomfortable", "terrible", "flimsy", "loud", "ugly", "slow"}


def said(text: str) -> str:
    """Read a review without the generator: its only opinion, and whether "not" precedes it."""
    words = text.replace(",", "").replace(".", "").split()
    [at] = [n for n, word in enumerate(words) if word in GOOD | BAD]
    is_positive = (words[at] in GOOD) != (words[at - 1] == "not")
    return "positive" if is_positive else "negative"


@pytest.mark.slow
def test_the_label_agrees_with_the_text_except_for_the_stated_noise():
    reviews = generate_reviews(4_000, seed=3)
    differs = [said(text) != label for text, label in zip(*reviews.T.to_numpy(), strict=True)]

    share = sum(differs) / len(differs)
    assert share == pytest.approx(LABEL_NOISE, abs=3.3 * math.sqrt(0.05 * 0.95 / 4_000))
    assert reviews["label"].value_counts(normalize=True).between(0.47, 0.53).all()
    # The mean log loss of a model that states the true probabilities.
    ideal = -sum(math.log(LABEL_NOISE if wrong else 1 - LABEL_NOISE) for wrong in differs)
    assert lowest_log_loss() == pytest.approx(ideal / len(differs), abs=0.04)


def test_the_seed_determines_the_reviews():
    first = generate_reviews(50, seed=1)

    assert first.equals(generate_reviews(50, seed=1))
    assert not first.equals(generate_reviews(50, seed=2))
