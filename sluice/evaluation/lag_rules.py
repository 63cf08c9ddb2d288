"""Baseline rules that predict from the target of an earlier row.

Shape legend: N = examples, C = classes.
"""

import math

import pandas as pd
import torch
from torch import Tensor

from sluice.evaluation.rule_data import BaselineRule, RuleData, RuleNotApplicable
from sluice.workloads.workload import Workload


def last_value(
    workload: Workload, train: RuleData, known_rows: RuleData, rows_to_predict: RuleData
) -> Tensor:
    """Predict the newest known target: the target of ``horizon_rows`` rows earlier."""
    return _predict_earlier_target(
        workload, train, known_rows, rows_to_predict, lag=workload.horizon_rows
    )


def seasonal_rule(season: int) -> BaselineRule:
    """Return the rule that predicts the newest known target at the same position of the season.

    Args:
        season: Length of a season [rows].
    """

    def rule(
        workload: Workload, train: RuleData, known_rows: RuleData, rows_to_predict: RuleData
    ) -> Tensor:
        lag = math.ceil(workload.horizon_rows / season) * season
        if lag == workload.horizon_rows:
            raise RuleNotApplicable  # the rule would be the same as "last value"
        return _predict_earlier_target(workload, train, known_rows, rows_to_predict, lag=lag)

    return rule


def _predict_earlier_target(
    workload: Workload,
    train: RuleData,
    known_rows: RuleData,
    rows_to_predict: RuleData,
    *,
    lag: int,
) -> Tensor:
    """Predict the target of ``lag`` rows earlier, or the train mean if this target is unknown."""
    has_target_shape = tuple(workload.output_shape(rows_to_predict.y)) == tuple(
        rows_to_predict.y.shape
    )
    if not (rows_to_predict.y.is_floating_point() and has_target_shape):
        raise RuleNotApplicable  # the output is not a prediction of the target itself
    is_known, positions = _find_earlier(workload, known_rows, rows_to_predict, lag=lag)
    output = train.y.mean(dim=0, keepdim=True).expand_as(rows_to_predict.y).clone()
    output[is_known] = known_rows.y[positions][is_known]
    return output


def last_class(
    workload: Workload, train: RuleData, known_rows: RuleData, rows_to_predict: RuleData
) -> Tensor:
    """Predict log frequencies (N, C) of the classes that follow the newest known class."""
    shape = workload.output_shape(rows_to_predict.y)
    if rows_to_predict.y.ndim != 1 or len(shape) != 2:
        raise RuleNotApplicable
    lag, num_classes = workload.horizon_rows, shape[1]
    is_known, positions = _find_earlier(workload, train, train, lag=lag)
    transitions = torch.stack([train.y[positions][is_known], train.y[is_known]]).long()
    # Counts start at one (Laplace smoothing), so that no probability is 0.
    counts = torch.ones(num_classes, num_classes)
    counts.index_put_(
        (transitions[0], transitions[1]), torch.ones(transitions.shape[1]), accumulate=True
    )
    class_counts = torch.bincount(train.y.long(), minlength=num_classes) + 1
    is_known, positions = _find_earlier(workload, known_rows, rows_to_predict, lag=lag)
    probability_NC = (
        (class_counts / class_counts.sum()).expand(len(rows_to_predict.y), num_classes).clone()
    )
    transition_probability_CC = counts / counts.sum(dim=1, keepdim=True)
    probability_NC[is_known] = transition_probability_CC[known_rows.y[positions][is_known].long()]
    return probability_NC.log()


def _find_earlier(
    workload: Workload, known_rows: RuleData, rows_to_predict: RuleData, *, lag: int
) -> tuple[Tensor, Tensor]:
    """Find the row that is ``lag`` rows before each row to predict.

    Returns:
        Whether ``known_rows`` contains this row (N,), and its position there, -1 if absent (N,).
    """
    if lag < 1 or workload.cluster_column is not None:
        # The rows have no order in time, or there are several rows per time.
        raise RuleNotApplicable
    positions = torch.from_numpy(
        pd.Index(known_rows.rows).get_indexer(pd.Index(rows_to_predict.rows - lag))
    )
    return positions >= 0, positions
