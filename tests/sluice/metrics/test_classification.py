"""EVAL-1: metrics of classifiers."""

import math

import numpy as np
import pytest
from sklearn import metrics as oracle

from sluice.base.errors import ContractError
from sluice.metrics.classification import NAMES, classification_metrics


def drawn(num_rows: int, num_classes: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    probability = rng.dirichlet(np.ones(num_classes), num_rows)
    target = [int(rng.choice(num_classes, p=row)) for row in probability]
    return np.array(target), probability


def test_known_answers_match_manual_values():
    probability = np.array([[0.8, 0.2], [0.6, 0.4], [0.3, 0.7], [0.4, 0.6]])

    found = classification_metrics([0, 1, 1, 0], probability).values

    assert found["accuracy"] == found["balanced_accuracy"] == found["macro_f1"] == 0.5
    assert found["mcc"] == 0.0
    assert found["log_loss"] == pytest.approx(-math.log(0.8 * 0.4 * 0.7 * 0.4) / 4)
    assert found["brier"] == pytest.approx((0.2**2 + 0.6**2 + 0.3**2 + 0.6**2) / 4)
    # Of four pairs (0.4 or 0.7 against 0.2 or 0.6) the positive is ahead in three.
    assert found["auc"] == 0.75


@pytest.mark.parametrize("num_classes", [2, 4])
def test_every_metric_agrees_with_scikit_learn(num_classes):
    target, probability = drawn(300, num_classes)
    predicted = probability.argmax(axis=1)

    found = classification_metrics(target, probability)

    assert tuple(found.values) == NAMES
    labels = list(range(num_classes))
    score = probability[:, 1] if num_classes == 2 else probability
    expected = {
        "macro_f1": oracle.f1_score(target, predicted, average="macro"),
        "accuracy": oracle.accuracy_score(target, predicted),
        "balanced_accuracy": oracle.balanced_accuracy_score(target, predicted),
        "mcc": oracle.matthews_corrcoef(target, predicted),
        "log_loss": oracle.log_loss(target, probability, labels=labels),
        "brier": oracle.brier_score_loss(target, score, labels=labels),
        "auc": oracle.roc_auc_score(target, score, multi_class="ovr", labels=labels),
    }
    assert {name: found.values[name] for name in expected} == pytest.approx(expected)


def test_a_class_that_is_only_predicted_lowers_macro_f1_and_no_recall():
    probability = np.eye(3)[[0, 1, 2, 0]]

    found = classification_metrics([0, 1, 1, 0], probability)

    assert found.values["balanced_accuracy"] == pytest.approx((1 + 0.5) / 2)
    assert found.values["macro_f1"] == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert found.absent["auc"] == "no target is of class 2"
    assert found.absent["log_loss"].endswith("is 0 in 1 row")


def test_one_class_only_leaves_what_compares_classes_absent_never_0():
    found = classification_metrics([1, 1], [[0.4, 0.6], [0.3, 0.7]])

    assert set(found.absent) == {"balanced_accuracy", "mcc", "auc"}
    assert found.absent["mcc"] == "all targets are class 1"
    assert all(math.isnan(found.numbers[name]) for name in found.absent)
    assert found.values["accuracy"] == 1.0


def test_a_classifier_that_says_one_thing_has_no_correlation():
    found = classification_metrics([0, 1], [[0.9, 0.1], [0.9, 0.1]])

    assert found.absent == {"mcc": "all predictions are class 0"}
    assert found.values["auc"] == 0.5


def test_diverged_model_has_no_metrics_and_a_reason():
    found = classification_metrics([0, 1], [[0.5, 0.5], [np.nan, 1.0]])

    assert found.values == {}
    assert set(found.absent.values()) == {"1 of 4 probabilities are not finite"}
    assert set(found.absent) == set(NAMES)


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
        ([0, 1], [[0.5, 0.5], [2.0, -1.0]], "in the first one, row 1, the smallest is -1"),
        ([0, 1], [[0.5, 0.5], [3.0, 1.0]], "sum 4"),
    ],
)
def test_invalid_classification_inputs_are_rejected(target, probability, message):
    with pytest.raises(ContractError, match=message):
        classification_metrics(target, probability)


def test_a_softmax_in_single_precision_is_a_probability():
    target, probability = drawn(100, 10, seed=3)

    found = classification_metrics(target, probability.astype(np.float32))

    assert found.values["auc"] == pytest.approx(
        classification_metrics(target, probability).values["auc"]
    )
