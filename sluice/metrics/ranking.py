"""Computes metrics of rankings, averaged over queries.

Shape legend: N = documents of all queries, n = documents of one query.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sluice.base.errors import ContractError
from sluice.metrics.task_metrics import (
    TaskMetrics,
    non_finite_reason,
    undefined_metrics,
    validate_predictions,
    validate_targets,
)


def ranking_metrics(
    relevance: ArrayLike, score: ArrayLike, query: ArrayLike, *, top_k: int
) -> TaskMetrics:
    """Return ndcg, precision, map and mrr as means over queries, and the share of used queries.

    A query is used if its documents differ in relevance. For any other query, all orders are
    equally good, so the query is ignored. Precision, map and mrr also ignore queries without a
    document of relevance 0.

    - ndcg@k: gains are the relevances themselves; documents of equal score each get the mean
      discount of their ranks;
    - precision@k: share of the first k ranks with a relevant document (relevance above 0). If
      documents of equal score are on both sides of rank k, each of their ranks up to k counts as
      the share of relevant documents among them. Ranks without a document count as not relevant;
    - map: mean average precision;
    - mrr: reciprocal rank of the first relevant document. Documents of equal score all get the last
      of their ranks, so a model with constant scores does not profit from the order of the rows;
    - used_query_share: share of the queries that are used.

    Precision, map and mrr are absent if no used query has a document of relevance 0. All metrics
    except used_query_share are absent if no query is used. All metrics are absent if a score is
    non-finite.

    Args:
        relevance: Relevance of each document (N,), at least 0; graded or binary.
        score: Score of each document (N,); the highest score is ranked first.
        query: Query of each document (N,), any labels.
        top_k: The k of ndcg@k and precision@k, at least 1.

    Raises:
        ContractError: Shapes do not match, a relevance is negative or non-finite, or ``top_k``
            is below 1.
    """
    if top_k < 1:
        raise ContractError(
            f"ndcg@k and precision@k need a k of at least 1, got {top_k}.", fix="Increase k."
        )
    relevance_N = validate_targets(relevance, what="relevances")
    if relevance_N.min() < 0:
        raise ContractError(
            f"Relevances must be at least 0, got {relevance_N.min():g} at row "
            f"{int(relevance_N.argmin())}.",
            fix="Use 0 for documents that are not relevant.",
        )
    score_N = validate_predictions(score, relevance_N.shape, what="scores")
    query_N = np.asarray(query)
    if query_N.shape != relevance_N.shape:
        raise ContractError(
            f"Queries must have the shape {relevance_N.shape}, got {query_N.shape}.",
            fix="Pass the query of each document.",
        )
    metric_names = (f"ndcg@{top_k}", f"precision@{top_k}", "map", "mrr")
    if reason := non_finite_reason(score_N, what="scores"):
        return undefined_metrics((*metric_names, "used_query_share"), reason)
    query_masks = [query_N == label for label in np.unique(query_N)]
    used_masks = [mask_N for mask_N in query_masks if np.ptp(relevance_N[mask_N]) > 0]
    values = {"used_query_share": len(used_masks) / len(query_masks)}
    if not used_masks:
        reason = (
            f"no query has documents of different relevance (number of queries: {len(query_masks)})"
        )
        return TaskMetrics(values=values, absent=dict.fromkeys(metric_names, reason))
    pairs = [(relevance_N[mask_N], score_N[mask_N]) for mask_N in used_masks]
    values[metric_names[0]] = float(np.mean([_ndcg(*pair, top_k=top_k) for pair in pairs]))
    pairs_with_irrelevant = [pair for pair in pairs if pair[0].min() == 0]
    if not pairs_with_irrelevant:
        reason = "in each query with different relevances, every document is relevant"
        return TaskMetrics(values=values, absent=dict.fromkeys(metric_names[1:], reason))
    values[metric_names[1]] = float(
        np.mean([_precision(*pair, top_k=top_k) for pair in pairs_with_irrelevant])
    )
    values["map"] = float(np.mean([_average_precision(*pair) for pair in pairs_with_irrelevant]))
    values["mrr"] = float(np.mean([_reciprocal_rank(*pair) for pair in pairs_with_irrelevant]))
    return TaskMetrics(values=values)


def _ndcg(relevance_n: NDArray[np.float64], score_n: NDArray[np.float64], *, top_k: int) -> float:
    from sklearn.metrics import ndcg_score

    return float(ndcg_score(relevance_n[None], score_n[None], k=top_k))


def _precision(
    relevance_n: NDArray[np.float64], score_n: NDArray[np.float64], *, top_k: int
) -> float:
    """Return the precision of the first ``top_k`` ranks; tied documents share their ranks."""
    num_ranks = min(top_k, score_n.size)
    last_score = np.sort(score_n)[-num_ranks]
    is_above_n, is_tied_n = score_n > last_score, score_n == last_score
    num_tied_ranks = num_ranks - int(is_above_n.sum())
    is_relevant_n = relevance_n > 0
    num_relevant = (
        is_relevant_n[is_above_n].sum() + num_tied_ranks * is_relevant_n[is_tied_n].mean()
    )
    return float(num_relevant) / top_k


def _average_precision(relevance_n: NDArray[np.float64], score_n: NDArray[np.float64]) -> float:
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(relevance_n > 0, score_n))


def _reciprocal_rank(relevance_n: NDArray[np.float64], score_n: NDArray[np.float64]) -> float:
    best_score = score_n[relevance_n > 0].max()
    return 1.0 / int((score_n >= best_score).sum())
