"""Metrics of classifiers (EVAL-1)."""

import math

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from sluice.base.errors import ContractError
from sluice.metrics.classification import METRIC_NAMES, classification_metrics


def draw_sample(num_rows: int, num_classes: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    probability = rng.dirichlet(np.ones(num_classes), num_rows)
    target = [int(rng.choice(num_classes, p=row)) for row in probability]
    return np.array(target), probability


def test_metrics_match_manual_values():
    probability = np.array([[0.8, 0.2], [0.6, 0.4], [0.3, 0.7], [0.4, 0.6]])

    result = classification_metrics([0, 1, 1, 0], probability).values

    assert result["accuracy"] == result["balanced_accuracy"] == result["macro_f1"] == 0.5
    assert result["mcc"] == 0.0
    assert result["log_loss"] == pytest.approx(-math.log(0.8 * 0.4 * 0.7 * 0.4) / 4)
    assert result["brier"] == pytest.approx((0.2**2 + 0.6**2 + 0.3**2 + 0.6**2) / 4)
    # In three of four pairs (0.4 or 0.7 with 0.2 or 0.6) the positive has the higher score.
    assert result["auc"] == 0.75


@pytest.mark.parametrize("num_classes", [2, 4])
def test_metrics_equal_scikit_learn(num_classes):
    target, probability = draw_sample(300, num_classes)
    predicted = probability.argmax(axis=1)

    result = classification_metrics(target, probability)

    assert tuple(result.values) == METRIC_NAMES
    labels = list(range(num_classes))
    score = probability[:, 1] if num_classes == 2 else probability
    expected = {
        "macro_f1": sklearn_metrics.f1_score(target, predicted, average="macro"),
        "accuracy": sklearn_metrics.accuracy_score(target, predicted),
        "balanced_accuracy": sklearn_metrics.balanced_accuracy_score(target, predicted),
        "mcc": sklearn_metrics.matthews_corrcoef(target, predicted),
        "log_loss": sklearn_metrics.log_loss(target, probability, labels=labels),
        "brier": sklearn_metrics.brier_score_loss(target, score, labels=labels),
        "auc": sklearn_metrics.roc_auc_score(target, score, multi_class="ovr", labels=labels),
    }
    assert {name: result.values[name] for name in expected} == pytest.approx(expected)


def test_class_without_targets_lowers_macro_f1_but_not_balanced_accuracy():
    probability = np.eye(3)[[0, 1, 2, 0]]

    result = classification_metrics([0, 1, 1, 0], probability)

    assert result.values["balanced_accuracy"] == pytest.approx((1 + 0.5) / 2)
    assert result.values["macro_f1"] == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert result.absent["auc"] == "no target is of class 2"
    assert result.absent["log_loss"].endswith("is 0 in 1 row")


def test_metrics_that_compare_classes_are_absent_with_one_class():
    result = classification_metrics([1, 1], [[0.4, 0.6], [0.3, 0.7]])

    assert set(result.absent) == {"balanced_accuracy", "mcc", "auc"}
    assert result.absent["mcc"] == "all targets are class 1"
    assert all(math.isnan(result.numbers[name]) for name in result.absent)
    assert result.values["accuracy"] == 1.0


def test_mcc_of_constant_predictions_is_absent():
    result = classification_metrics([0, 1], [[0.9, 0.1], [0.9, 0.1]])

    assert result.absent == {"mcc": "all predictions are class 0"}
    assert result.values["auc"] == 0.5


def test_diverged_model_has_no_metrics_and_a_reason():
    result = classification_metrics([0, 1], [[0.5, 0.5], [np.nan, 1.0]])

    assert result.values == {}
    assert set(result.absent.values()) == {"1 of 4 probabilities are not finite"}
    assert set(result.absent) == set(METRIC_NAMES)


@pytest.mark.parametrize(
    ("target", "probability", "message"),
    [
        ([0, 1, 2], np.full((3, 2), 0.5), "classes 0 to 1, got 1 .* 2 at row 2"),
        ([0, 0.5], np.full((2, 2), 0.5), "first 0.5 at row 1"),
        ([0, -1], np.full((2, 2), 0.5), "first -1 at row 1"),
        ([0, np.nan], np.full((2, 2), 0.5), "must be finite, got 1 of 2"),
        ([0, 1], np.full((3, 2), 0.5), r"must have the shape \(2, 2\), got \(3, 2\)"),
        ([0, 1], np.full(2, 0.5), r"must have the shape \(2, 2\), got \(2,\)"),
        ([0, 1], np.ones((2, 1)), r"must have the shape \(2, 2\), got \(2, 1\)"),
        ([], np.ones((0, 2)), "N at least 1"),
        (
            [0, 1],
            [[0.5, 0.5], [2.0, -1.0]],
            r"In the first such row \(1\), the smallest probability is -1",
        ),
        ([0, 1], [[0.5, 0.5], [3.0, 1.0]], "sum is 4"),
    ],
)
def test_invalid_classification_inputs_are_rejected(target, probability, message):
    with pytest.raises(ContractError, match=message):
        classification_metrics(target, probability)


def test_float32_probabilities_are_accepted():
    target, probability = draw_sample(100, 10, seed=3)

    result = classification_metrics(target, probability.astype(np.float32))

    assert result.values["auc"] == pytest.approx(
        classification_metrics(target, probability).values["auc"]
    )
