"""Directions in which well-known metrics improve."""

from collections.abc import Mapping
from typing import Literal

Direction = Literal["higher", "lower"]

_HIGHER_IS_BETTER = (
    "accuracy",
    "balanced_accuracy",
    "macro_f1",
    "f1",
    "precision",
    "recall",
    "mcc",
    "auc",
    "auc_roc",
    "roc_auc",
    "pr_auc",
    "average_precision",
    "r2",
    "spearman",
    "pearson",
    "sharpe",
    "sortino",
    "hit_rate",
    "map",
    "mrr",
    "ndcg",
    "rouge1",
    "rouge2",
    "rougeL",
    "bertscore",
    "bleu",
)
_LOWER_IS_BETTER = (
    "loss",
    "mae",
    "mse",
    "rmse",
    "mape",
    "smape",
    "log_loss",
    "brier",
    "calibration_error",
    "perplexity",
    "max_drawdown",
)
_KNOWN_DIRECTIONS: Mapping[str, Direction] = {
    **dict.fromkeys(_HIGHER_IS_BETTER, "higher"),
    **dict.fromkeys(_LOWER_IS_BETTER, "lower"),
}


def direction_of(metric: str, declared_directions: Mapping[str, Direction]) -> Direction | None:
    """Return the direction in which a metric improves, or None if unknown.

    Args:
        metric: Name of the metric; a suffix after '@', as in ``ndcg@10``, is ignored.
        declared_directions: Directions declared by the workload, which take precedence.

    >>> direction_of("ndcg@10", {}), direction_of("rmse", {}), direction_of("turnover", {})
    ('higher', 'lower', None)
    """
    return declared_directions.get(metric) or _KNOWN_DIRECTIONS.get(metric.partition("@")[0])
