"""Metrics of generated texts (EVAL-1)."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from sluice.base.errors import ContractError
from sluice.metrics.generation import METRIC_NAMES, generation_metrics, perplexity

VECTORS = {"cat": (1.0, 0.0), "dog": (0.6, 0.8), "sat": (0.0, 2.0)}


def embed(text: str) -> list[tuple[float, float]]:
    return [VECTORS[word] for word in text.split()]


def test_rouge_matches_manual_values() -> None:
    """The values equal those of rouge-score 0.1.2 without stemming."""
    result = generation_metrics(["The cat sat on the mat."], ["the mat: the cat!"], embed=None)

    # Shared: 4 of 6 and 4 words; 2 of 5 and 3 bigrams; a common subsequence of 2 words.
    assert result.values == pytest.approx({"rouge1": 8 / 10, "rouge2": 4 / 8, "rougeL": 4 / 10})
    assert result.absent == {"bertscore": "no encoder was given"}


def test_bertscore_matches_each_token_with_the_most_similar() -> None:
    result = generation_metrics(["cat sat"], ["dog"], embed=embed).values

    recall, precision = (0.6 + 0.8) / 2, 0.8
    assert result["bertscore"] == pytest.approx(2 * recall * precision / (recall + precision))


def test_scores_are_1_for_identical_and_0_for_empty_text() -> None:
    identical = generation_metrics(["cat dog sat"], ["cat dog sat"], embed=embed).values
    empty = generation_metrics(["cat dog sat"], [""], embed=embed).values

    assert identical == pytest.approx(dict.fromkeys(METRIC_NAMES, 1.0))
    assert empty == dict.fromkeys(METRIC_NAMES, 0.0)


def test_reversed_words_lower_only_rouge2_and_rouge_l() -> None:
    result = generation_metrics(["a b c d"], ["d c b a"], embed=None).values

    assert result["rouge1"] == 1.0
    assert result["rouge2"] == 0.0
    assert result["rougeL"] == pytest.approx(1 / 4)


def test_undefined_metric_is_absent_with_a_reason() -> None:
    no_word = generation_metrics(["cat", "..."], ["cat", "cat"], embed=embed)
    no_vector = generation_metrics(["cat"], ["cat"], embed=lambda _: np.zeros((1, 2)))

    assert no_word.absent == dict.fromkeys(
        METRIC_NAMES, "1 reference without a word, first at row 1"
    )
    assert no_vector.absent == {"bertscore": "the encoder's vectors of row 0 are non-finite, or 0"}
    assert no_vector.values["rouge1"] == 1.0


def test_mismatched_inputs_are_rejected() -> None:
    with pytest.raises(ContractError, match="got 2 and 1"):
        generation_metrics(["a", "b"], ["a"], embed=None)
    with pytest.raises(ContractError, match=r"one vector for each token of row 0.* got \(2,\)"):
        generation_metrics(["a"], ["a"], embed=lambda _: [1.0, 2.0])
    with pytest.raises(ContractError, match="one width for both texts of row 0"):
        generation_metrics(["a"], ["b c"], embed=lambda text: np.ones((1, len(text))))


def test_perplexity_of_a_uniform_guess_is_the_number_of_options() -> None:
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


def test_pandas_and_numpy_texts_are_accepted() -> None:
    texts = pd.Series(["cat dog sat", "cat sat"], index=[7, 8])

    result = generation_metrics(texts, texts.to_numpy(), embed=embed).values

    assert result == pytest.approx(dict.fromkeys(METRIC_NAMES, 1.0))


def test_unicode_normalization_forms_are_equal() -> None:
    composed, decomposed = "caf\u00e9 cr\u00e8me", "cafe\u0301 cre\u0300me"

    assert generation_metrics([composed], [decomposed], embed=None).values["rougeL"] == 1.0


@pytest.mark.parametrize(
    ("reference", "generated", "message"),
    [
        (["a"], [None], "generated texts must be texts, got one of type NoneType at row 0"),
        (["a", math.nan], ["a", "b"], "references must be texts, got one of type float at row 1"),
        ("ab", "cd", "references must be a list of texts, got a single text"),
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
def test_invalid_encoder_output_is_rejected(vectors: Any, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        generation_metrics(["a b"], ["a"], embed=lambda _: vectors)
