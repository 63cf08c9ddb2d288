"""Metrics of rankings, averaged over queries.

Shape legend: N = documents of all queries, n = documents of one query.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sluice.base.errors import ContractError
from sluice.metrics.task_metrics import (
    TaskMetrics,
    all_undefined,
    non_finite_reason,
    validate_predictions,
    validate_targets,
)


def ranking_metrics(
    relevance: ArrayLike, score: ArrayLike, query: ArrayLike, *, at: int
) -> TaskMetrics:
    """Return ndcg, precision, map and mrr as means over queries, and the share of judged queries.

    Queries are judged if the relevance of their documents differs: otherwise every order is equal.

    - ndcg@k: gains are the relevances themselves; documents of equal score share their ranks;
    - precision@k: share of the first k ranks with a relevant document (relevance above 0). For
      documents of equal score at the last ranks, their share of relevant documents counts; ranks
      without a document count as not relevant;
    - map: mean average precision;
    - mrr: reciprocal rank of the first relevant document. Equal scores get the last rank, so that
      a model with constant scores gains nothing from the order of the rows;
    - judged_share: share of the queries that are judged.

    Precision, map and mrr are absent if no judged query has a document of relevance 0; all except
    the share if no query is judged; all of them for non-finite scores.

    Args:
        relevance: Relevance of each document (N,), at least 0; graded or binary.
        score: Score of each document (N,), highest first.
        query: Query of each document (N,), any labels.
        at: The k of ndcg@k and precision@k, at least 1.

    Raises:
        ContractError: Shapes do not match, a relevance is negative or non-finite, or ``at`` is
            below 1.
    """
    if at < 1:
        raise ContractError(
            f"ndcg@k and precision@k need a k of at least 1, got {at}.", fix="Increase k."
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
            fix="Pass the query of every document.",
        )
    names = (f"ndcg@{at}", f"precision@{at}", "map", "mrr")
    if reason := non_finite_reason(score_N, what="scores"):
        return all_undefined((*names, "judged_share"), reason)
    whole = [query_N == one for one in np.unique(query_N)]
    judged = [rows for rows in whole if np.ptp(relevance_N[rows]) > 0]
    values = {"judged_share": len(judged) / len(whole)}
    if not judged:
        reason = f"the relevance of documents does not differ in any of {len(whole)} queries"
        return TaskMetrics(values=values, absent=dict.fromkeys(names, reason))
    pairs = [(relevance_N[rows], score_N[rows]) for rows in judged]
    values[names[0]] = float(np.mean([_ndcg(*pair, at=at) for pair in pairs]))
    binary = [(wanted, given) for wanted, given in pairs if wanted.min() == 0]
    if not binary:
        reason = "every document of every judged query is relevant"
        return TaskMetrics(values=values, absent=dict.fromkeys(names[1:], reason))
    values[names[1]] = float(np.mean([_precision(*pair, at=at) for pair in binary]))
    values["map"] = float(np.mean([_average_precision(*pair) for pair in binary]))
    values["mrr"] = float(np.mean([_reciprocal_rank(*pair) for pair in binary]))
    return TaskMetrics(values=values)


def _ndcg(relevance_n: NDArray[np.float64], score_n: NDArray[np.float64], *, at: int) -> float:
    from sklearn.metrics import ndcg_score

    return float(ndcg_score(relevance_n[None], score_n[None], k=at))


def _precision(relevance_n: NDArray[np.float64], score_n: NDArray[np.float64], *, at: int) -> float:
    last = np.sort(score_n)[-min(at, score_n.size)]
    above_n, level_n = score_n > last, score_n == last
    left = min(at, score_n.size) - int(above_n.sum())
    relevant_n = relevance_n > 0
    return float(relevant_n[above_n].sum() + left * relevant_n[level_n].mean()) / at


def _average_precision(relevance_n: NDArray[np.float64], score_n: NDArray[np.float64]) -> float:
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(relevance_n > 0, score_n))


def _reciprocal_rank(relevance_n: NDArray[np.float64], score_n: NDArray[np.float64]) -> float:
    best = score_n[relevance_n > 0].max()
    return 1.0 / int((score_n >= best).sum())
