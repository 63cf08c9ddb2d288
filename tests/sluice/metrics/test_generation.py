"""EVAL-1: metrics of generated texts."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from sluice.base.errors import ContractError
from sluice.metrics.generation import NAMES, generation_metrics, perplexity

VECTORS = {"cat": (1.0, 0.0), "dog": (0.6, 0.8), "sat": (0.0, 2.0)}


def embed(text: str) -> list[tuple[float, float]]:
    return [VECTORS[word] for word in text.split()]


def test_rouge_matches_manual_values() -> None:
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


def test_undefined_metric_is_absent_with_a_reason() -> None:
    no_word = generation_metrics(["cat", "..."], ["cat", "cat"], embed=embed)
    no_vector = generation_metrics(["cat"], ["cat"], embed=lambda _: np.zeros((1, 2)))

    assert no_word.absent == dict.fromkeys(NAMES, "1 reference without a word, first at row 1")
    assert no_vector.absent == {"bertscore": "the encoder's vectors of row 0 are non-finite, or 0"}
    assert no_vector.values["rouge1"] == 1.0


def test_mismatched_inputs_are_rejected() -> None:
    with pytest.raises(ContractError, match="got 2 and 1"):
        generation_metrics(["a", "b"], ["a"], embed=None)
    with pytest.raises(ContractError, match=r"one vector for each token of row 0.* got \(2,\)"):
        generation_metrics(["a"], ["a"], embed=lambda _: [1.0, 2.0])
    with pytest.raises(ContractError, match="one width for both texts of row 0"):
        generation_metrics(["a"], ["b c"], embed=lambda text: np.ones((1, len(text))))


def test_a_guess_among_equals_has_their_number_as_perplexity() -> None:
    assert perplexity([math.log(1 / 50)] * 7).values["perplexity"] == pytest.approx(50)
    assert perplexity([0.0, 0.0]).values == {"perplexity": 1.0}


def test_perplexity_gives_the_reason_it_is_absent_and_rejects_losses() -> None:
    assert perplexity([-1.0, -math.inf]).absent == {
        "perplexity": "1 of 2 log-probabilities are infinite or NaN"
    }
    assert "exceeds the largest float" in perplexity([-1e6]).absent["perplexity"]
    with pytest.raises(ContractError, match=r"at most 0, got 2\.5 at token 1"):
        perplexity([-1.0, 2.5])
    with pytest.raises(ContractError, match="N at least 1"):
        perplexity([])


def test_columns_of_a_table_are_texts() -> None:
    texts = pd.Series(["cat dog sat", "cat sat"], index=[7, 8])

    found = generation_metrics(texts, texts.to_numpy(), embed=embed).values

    assert found == pytest.approx(dict.fromkeys(NAMES, 1.0))


def test_an_accent_is_of_its_letter_however_it_is_stored() -> None:
    one, other = "caf\u00e9 cr\u00e8me", "cafe\u0301 cre\u0300me"

    assert generation_metrics([one], [other], embed=None).values["rougeL"] == 1.0


@pytest.mark.parametrize(
    ("reference", "generated", "message"),
    [
        (["a"], [None], "generated texts must be texts, got one of type NoneType at row 0"),
        (["a", math.nan], ["a", "b"], "references must be texts, got one of type float at row 1"),
        ("ab", "cd", "references must be a list of texts, got one"),
    ],
)
def test_non_string_is_rejected(reference: Any, generated: Any, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        generation_metrics(reference, generated, embed=None)


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([], "one width for both texts of row 0"),
        ([[1.0, 2.0], [3.0]], "row 0 that NumPy accepts: .*inhomogeneous"),
        (torch.ones(2, 2, requires_grad=True), "row 0 that NumPy accepts: .*requires grad"),
        (torch.ones(2, 2, dtype=torch.bfloat16), "row 0 that NumPy accepts: .*BFloat16"),
    ],
)
def test_an_encoder_without_vectors_is_rejected(vectors: Any, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        generation_metrics(["a b"], ["a"], embed=lambda _: vectors)
