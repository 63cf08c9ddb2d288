"""Generated product reviews and their labels."""

import math

import pytest

from sluice.data.generated.reviews import (
    LABEL_NOISE,
    generate_reviews,
    lowest_log_loss,
)

GOOD = {"great", "reliable", "comfortable", "excellent", "sturdy", "quiet", "beautiful", "fast"}
BAD = {"awful", "fragile", "uncomfortable", "terrible", "flimsy", "loud", "ugly", "slow"}


def read_opinion(text: str) -> str:
    """Return the label of a review's only opinion word, negated if "not" precedes it."""
    words = text.replace(",", "").replace(".", "").split()
    [index] = [n for n, word in enumerate(words) if word in GOOD | BAD]
    is_positive = (words[index] in GOOD) != (words[index - 1] == "not")
    return "positive" if is_positive else "negative"


@pytest.mark.slow
def test_labels_agree_with_texts_except_for_label_noise():
    reviews = generate_reviews(4_000, seed=3)
    is_noisy = [
        read_opinion(text) != label for text, label in zip(*reviews.T.to_numpy(), strict=True)
    ]

    share = sum(is_noisy) / len(is_noisy)
    assert share == pytest.approx(LABEL_NOISE, abs=3.3 * math.sqrt(0.05 * 0.95 / 4_000))
    assert reviews["label"].value_counts(normalize=True).between(0.47, 0.53).all()
    # Mean log loss of a model that predicts the true probabilities.
    total_loss = -sum(
        math.log(LABEL_NOISE if is_wrong else 1 - LABEL_NOISE) for is_wrong in is_noisy
    )
    assert lowest_log_loss() == pytest.approx(total_loss / len(is_noisy), abs=0.04)


def test_equal_seeds_give_equal_reviews():
    first = generate_reviews(50, seed=1)

    assert first.equals(generate_reviews(50, seed=1))
    assert not first.equals(generate_reviews(50, seed=2))
