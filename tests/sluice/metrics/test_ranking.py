"""Metrics of rankings, averaged over queries (EVAL-1)."""

import math

import numpy as np
import pytest

from sluice.base.errors import ContractError
from sluice.metrics.ranking import ranking_metrics


def test_metrics_match_manual_values():
    # Query a: relevances 0, 2, 1 by rank. Query b: the only relevant document has rank 1.
    result = ranking_metrics(
        [0, 2, 1, 1, 0], [9, 8, 7, 5, 4], ["a", "a", "a", "b", "b"], top_k=2
    ).values

    dcg, ideal_dcg = 2 / math.log2(3), 2 + 1 / math.log2(3)
    assert result["ndcg@2"] == pytest.approx((dcg / ideal_dcg + 1) / 2)
    assert result["precision@2"] == pytest.approx((1 / 2 + 1 / 2) / 2)
    assert result["map"] == pytest.approx(((1 / 2 + 2 / 3) / 2 + 1) / 2)
    assert result["mrr"] == pytest.approx((1 / 2 + 1) / 2)
    assert result["used_query_share"] == 1.0


def test_tied_scores_are_averaged_over_all_orders():
    first_relevant = ranking_metrics([1, 0, 0, 0], np.zeros(4), np.zeros(4), top_k=1)
    last_relevant = ranking_metrics([0, 0, 0, 1], np.zeros(4), np.zeros(4), top_k=1)

    assert first_relevant == last_relevant
    assert first_relevant.values == {
        "used_query_share": 1.0,
        "ndcg@1": 0.25,
        "precision@1": 0.25,
        "map": 0.25,
        "mrr": 0.25,
    }


def test_precision_divides_by_the_requested_number_of_ranks():
    """A query with two documents has only two of three ranks; ties count by expectation."""
    long_query = ranking_metrics([1, 0, 2, 1], [9, 8, 7, 6], np.zeros(4), top_k=3).values
    short_query = ranking_metrics([1, 0], [2, 1], np.zeros(2), top_k=3).values
    tied = ranking_metrics([1, 0, 1], [9, 5, 5], np.zeros(3), top_k=2).values

    assert long_query["precision@3"] == pytest.approx(2 / 3)
    assert short_query["precision@3"] == pytest.approx(1 / 3)
    assert tied["precision@2"] == pytest.approx((1 + 0.5) / 2)


def test_metrics_do_not_depend_on_row_order():
    rng = np.random.default_rng(0)
    relevance, score, query = rng.integers(0, 4, 60), rng.normal(size=60), rng.integers(0, 6, 60)
    order = rng.permutation(60)

    original = ranking_metrics(relevance, score, query, top_k=5).values
    permuted = ranking_metrics(relevance[order], score[order], query[order], top_k=5).values

    assert original == pytest.approx(permuted)


def test_queries_with_only_equal_relevances_are_excluded_and_counted():
    result = ranking_metrics([1, 0, 0, 0, 2], [2, 1, 2, 1, 1], [0, 0, 1, 1, 2], top_k=3)

    assert result.values["used_query_share"] == pytest.approx(1 / 3)
    assert result.values["mrr"] == 1.0


def test_undefined_metric_is_absent_with_a_reason():
    without_relevant = ranking_metrics([0, 0, 1], [1, 2, 3], [0, 0, 1], top_k=3)
    graded = ranking_metrics([1, 2], [1, 2], [0, 0], top_k=3)
    diverged = ranking_metrics([0, 1], [np.nan, 1], [0, 0], top_k=3)

    assert set(without_relevant.absent) == {"ndcg@3", "precision@3", "map", "mrr"}
    assert without_relevant.values == {"used_query_share": 0.0}
    assert set(graded.absent) == {"precision@3", "map", "mrr"}
    assert graded.values["ndcg@3"] == 1.0
    assert set(diverged.absent) == {"ndcg@3", "precision@3", "map", "mrr", "used_query_share"}


@pytest.mark.parametrize(
    ("relevance", "score", "query", "top_k", "message"),
    [
        ([0, -1], [1, 2], [0, 0], 3, "at least 0, got -1 at row 1"),
        ([0, 1], [1, 2, 3], [0, 0], 3, r"scores must have the shape \(2,\)"),
        ([0, 1], [1, 2], [0], 3, r"Queries must have the shape \(2,\)"),
        ([0, 1], [1, 2], [0, 0], 0, "at least 1, got 0"),
        ([0, np.nan], [1, 2], [0, 0], 1, "relevances must be finite"),
    ],
)
def test_invalid_ranking_inputs_are_rejected(relevance, score, query, top_k, message):
    with pytest.raises(ContractError, match=message):
        ranking_metrics(relevance, score, query, top_k=top_k)
