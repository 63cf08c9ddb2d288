"""EVAL-1: metrics of generated texts."""

import math

import numpy as np
import pytest

from sluice.errors import ContractError
from sluice.evaluation.metrics.generation import NAMES, generation_metrics, perplexity

VECTORS = {"cat": (1.0, 0.0), "dog": (0.6, 0.8), "sat": (0.0, 2.0)}


def embed(text: str) -> list[tuple[float, float]]:
    return [VECTORS[word] for word in text.split()]


def test_rouge_by_hand() -> None:
    """As rouge-score 0.1.2 has it, without its stemmer."""
    found = generation_metrics(["The cat sat on the mat."], ["the mat: the cat!"], embed=None)

    # 4 shared words of 6 and 4; pairs "the cat" and "the mat" of 5 and 3; in order "the cat".
    assert found.values == pytest.approx({"rouge1": 8 / 10, "rouge2": 4 / 8, "rougeL": 4 / 10})
    assert found.absent == {"bertscore": "no encoder was given"}


def test_bertscore_matches_each_token_with_its_nearest() -> None:
    found = generation_metrics(["cat sat"], ["dog"], embed=embed).values

    recall, precision = (0.6 + 0.8) / 2, 0.8
    assert found["bertscore"] == pytest.approx(2 * recall * precision / (recall + precision))


def test_the_same_text_earns_all_and_an_empty_one_nothing() -> None:
    same = generation_metrics(["cat dog sat"], ["cat dog sat"], embed=embed).values
    nothing = generation_metrics(["cat dog sat"], [""], embed=embed).values

    assert same == pytest.approx(dict.fromkeys(NAMES, 1.0))
    assert nothing == dict.fromkeys(NAMES, 0.0)


def test_words_in_another_order_earn_less_by_order_alone() -> None:
    found = generation_metrics(["a b c d"], ["d c b a"], embed=None).values

    assert found["rouge1"] == 1.0
    assert found["rouge2"] == 0.0
    assert found["rougeL"] == pytest.approx(1 / 4)


def test_what_is_not_defined_is_absent_and_said() -> None:
    no_word = generation_metrics(["cat", "..."], ["cat", "cat"], embed=embed)
    no_vector = generation_metrics(["cat"], ["cat"], embed=lambda _: np.zeros((1, 2)))

    assert no_word.absent == dict.fromkeys(NAMES, "1 references have no word, first at row 1")
    assert no_vector.absent == {"bertscore": "the encoder's vectors of row 0 are not finite, or 0"}
    assert no_vector.values["rouge1"] == 1.0


def test_what_does_not_belong_together_is_refused() -> None:
    with pytest.raises(ContractError, match="got 2 and 1"):
        generation_metrics(["a", "b"], ["a"], embed=None)
    with pytest.raises(ContractError, match=r"one vector for each token of row 0.* got \(2,\)"):
        generation_metrics(["a"], ["a"], embed=lambda _: [1.0, 2.0])
    with pytest.raises(ContractError, match="one width for both texts of row 0"):
        generation_metrics(["a"], ["b c"], embed=lambda text: np.ones((1, len(text))))


def test_a_guess_among_equals_has_their_number_as_perplexity() -> None:
    assert perplexity([math.log(1 / 50)] * 7).values["perplexity"] == pytest.approx(50)
    assert perplexity([0.0, 0.0]).values == {"perplexity": 1.0}


def test_perplexity_says_why_it_is_absent_and_refuses_losses() -> None:
    assert perplexity([-1.0, -math.inf]).absent == {
        "perplexity": "1 of 2 tokens have probability 0, or none"
    }
    assert "beyond the largest number" in perplexity([-1e6]).absent["perplexity"]
    with pytest.raises(ContractError, match=r"at most 0, got 2\.5 at token 1"):
        perplexity([-1.0, 2.5])
    with pytest.raises(ContractError, match="N at least 1"):
        perplexity([])
