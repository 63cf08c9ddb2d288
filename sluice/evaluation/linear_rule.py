"""Baseline rule that predicts with a linear model of the inputs.

Shape legend: N = examples, O = outputs, C = classes, K = inputs of an example, flattened.
"""

import warnings

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sluice.evaluation.rule_data import RuleData, RuleNotApplicable, evenly_spaced_positions
from sluice.workloads.workload import Workload


def linear(
    workload: Workload,
    train: RuleData,
    known_rows: RuleData,  # noqa: ARG001 - signature of all rules
    rows_to_predict: RuleData,
    *,
    max_rows: int,
) -> Tensor:
    """Predict with ridge regression, or with logistic regression for classes.

    The regression is fitted on at most ``max_rows`` train rows.
    """
    if train.input_NK is None or rows_to_predict.input_NK is None:
        raise RuleNotApplicable
    fit_rows = evenly_spaced_positions(len(train.y), max_rows)
    fit_NK, y = train.input_NK[fit_rows], train.y[torch.from_numpy(fit_rows)]
    mean, deviation = fit_NK.mean(axis=0), fit_NK.std(axis=0)
    scale = np.where(deviation > 0, deviation, 1.0)
    fit_NK, input_NK = (fit_NK - mean) / scale, (rows_to_predict.input_NK - mean) / scale
    if not (np.isfinite(fit_NK).all() and np.isfinite(input_NK).all()):
        raise RuleNotApplicable
    shape = workload.output_shape(rows_to_predict.y)
    if y.is_floating_point():
        if tuple(shape) != tuple(rows_to_predict.y.shape):
            raise RuleNotApplicable
        output = _ridge(fit_NK, y.reshape(len(y), -1).double().numpy(), input_NK)
        return torch.from_numpy(output).to(rows_to_predict.y.dtype).reshape(rows_to_predict.y.shape)
    if y.ndim != 1 or len(shape) != 2:
        raise RuleNotApplicable
    return _logistic(fit_NK, y.numpy(), input_NK, num_classes=shape[1])


def _ridge(
    fit_NK: NDArray[np.float64], y_NO: NDArray[np.float64], input_NK: NDArray[np.float64]
) -> NDArray[np.float64]:
    from sklearn.linear_model import RidgeCV

    model = RidgeCV(alphas=np.logspace(-3, 4, 8) * max(1.0, len(fit_NK) / 1000)).fit(fit_NK, y_NO)
    output: NDArray[np.float64] = model.predict(input_NK)
    return output


def _logistic(
    fit_NK: NDArray[np.float64],
    y_N: NDArray[np.int64],
    input_NK: NDArray[np.float64],
    *,
    num_classes: int,
) -> Tensor:
    """Return log probabilities (N, C), with a floor for classes without train rows."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    train_classes = np.unique(y_N)
    if len(train_classes) < 2 or train_classes.min() < 0 or train_classes.max() >= num_classes:
        raise RuleNotApplicable
    with warnings.catch_warnings():  # a baseline is valid even if it has not converged
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = LogisticRegression(max_iter=100).fit(fit_NK, y_N)
    floor = 1 / (len(y_N) + num_classes)
    probability_NC = np.full((len(input_NK), num_classes), floor)
    probability_NC[:, model.classes_] = np.maximum(model.predict_proba(input_NK), floor)
    return torch.from_numpy(
        np.log(probability_NC / probability_NC.sum(axis=1, keepdims=True))
    ).float()
