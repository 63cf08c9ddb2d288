"""EVAL-1: metrics of rankings, averaged over queries."""

import math

import numpy as np
import pytest

from sluice.base.errors import ContractError
from sluice.metrics.ranking import ranking_metrics


def test_known_answers_match_manual_values():
    # Query a: places of relevance 0, 2, 1. Query b: the only relevant document comes first.
    found = ranking_metrics(
        [0, 2, 1, 1, 0], [9, 8, 7, 5, 4], ["a", "a", "a", "b", "b"], at=2
    ).values

    gained, best = 2 / math.log2(3), 2 + 1 / math.log2(3)
    assert found["ndcg@2"] == pytest.approx((gained / best + 1) / 2)
    assert found["precision@2"] == pytest.approx((1 / 2 + 1 / 2) / 2)
    assert found["map"] == pytest.approx(((1 / 2 + 2 / 3) / 2 + 1) / 2)
    assert found["mrr"] == pytest.approx((1 / 2 + 1) / 2)
    assert found["judged_share"] == 1.0


def test_a_model_that_scores_all_alike_earns_nothing_by_the_order_of_rows():
    first = ranking_metrics([1, 0, 0, 0], np.zeros(4), np.zeros(4), at=1)
    last = ranking_metrics([0, 0, 0, 1], np.zeros(4), np.zeros(4), at=1)

    assert first == last
    assert first.values == {
        "judged_share": 1.0,
        "ndcg@1": 0.25,
        "precision@1": 0.25,
        "map": 0.25,
        "mrr": 0.25,
    }


def test_precision_counts_the_places_that_are_asked_for():
    """Two of three places; a query of two documents leaves one of its three places empty."""
    one = ranking_metrics([1, 0, 2, 1], [9, 8, 7, 6], np.zeros(4), at=3).values
    short = ranking_metrics([1, 0], [2, 1], np.zeros(2), at=3).values
    tied = ranking_metrics([1, 0, 1], [9, 5, 5], np.zeros(3), at=2).values

    assert one["precision@3"] == pytest.approx(2 / 3)
    assert short["precision@3"] == pytest.approx(1 / 3)
    assert tied["precision@2"] == pytest.approx((1 + 0.5) / 2)


def test_the_order_of_the_rows_does_not_matter():
    rng = np.random.default_rng(0)
    relevance, score, query = rng.integers(0, 4, 60), rng.normal(size=60), rng.integers(0, 6, 60)
    order = rng.permutation(60)

    one = ranking_metrics(relevance, score, query, at=5).values
    other = ranking_metrics(relevance[order], score[order], query[order], at=5).values

    assert one == pytest.approx(other)


def test_queries_without_a_choice_are_left_out_and_counted():
    found = ranking_metrics([1, 0, 0, 0, 2], [2, 1, 2, 1, 1], [0, 0, 1, 1, 2], at=3)

    assert found.values["judged_share"] == pytest.approx(1 / 3)
    assert found.values["mrr"] == 1.0


def test_undefined_metric_is_absent_with_a_reason():
    none = ranking_metrics([0, 0, 1], [1, 2, 3], [0, 0, 1], at=3)
    graded = ranking_metrics([1, 2], [1, 2], [0, 0], at=3)
    diverged = ranking_metrics([0, 1], [np.nan, 1], [0, 0], at=3)

    assert set(none.absent) == {"ndcg@3", "precision@3", "map", "mrr"}
    assert none.values == {"judged_share": 0.0}
    assert set(graded.absent) == {"precision@3", "map", "mrr"}
    assert graded.values["ndcg@3"] == 1.0
    assert set(diverged.absent) == {"ndcg@3", "precision@3", "map", "mrr", "judged_share"}


@pytest.mark.parametrize(
    ("relevance", "score", "query", "at", "message"),
    [
        ([0, -1], [1, 2], [0, 0], 3, "at least 0, got -1 at row 1"),
        ([0, 1], [1, 2, 3], [0, 0], 3, r"scores must have the shape \(2,\)"),
        ([0, 1], [1, 2], [0], 3, r"Queries must have the shape \(2,\)"),
        ([0, 1], [1, 2], [0, 0], 0, "at least 1, got 0"),
        ([0, np.nan], [1, 2], [0, 0], 1, "relevances must be finite"),
    ],
)
def test_invalid_ranking_inputs_are_rejected(relevance, score, query, at, message):
    with pytest.raises(ContractError, match=message):
        ranking_metrics(relevance, score, query, at=at)
