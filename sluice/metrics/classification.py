"""Metrics of classifiers, from class numbers and probabilities.

Shape legend: N = rows, C = classes.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sluice.base.errors import ContractError
from sluice.base.pluralize import pluralize
from sluice.metrics.calibration import calibration_error
from sluice.metrics.task_metrics import (
    TaskMetrics,
    non_finite_reason,
    undefined_metrics,
    validate_predictions,
    validate_targets,
)

METRIC_NAMES = (
    "macro_f1",
    "accuracy",
    "balanced_accuracy",
    "mcc",
    "log_loss",
    "brier",
    "calibration_error",
    "auc",
)
"""Names of the metrics, in the order in which they are returned."""
CALIBRATION_BINS = 15
"""Number of bins of the calibration error."""
_SUM_TOLERANCE = 1e-4
"""Maximum deviation of the sum of a row's probabilities from 1. The deviation of a softmax in
single precision is smaller."""


def classification_metrics(target: ArrayLike, probability: ArrayLike) -> TaskMetrics:
    """Return the metrics of a classifier.

    The predicted class is the class with the highest probability; the first such class if several
    are equal.

    - macro_f1: mean F1 of the classes that occur in targets or predictions;
    - accuracy: share of correct predictions;
    - balanced_accuracy: mean recall of the classes that occur in the targets;
    - mcc: Matthews' correlation coefficient;
    - log_loss [nats];
    - brier: mean squared error of the probabilities, summed over classes and halved for two
      classes, so that two classes give the usual (p - y) squared;
    - calibration_error: see ``calibration_error``, over 15 bins;
    - auc: area under the ROC curve; for several classes the mean of one-versus-rest areas.

    Undefined metrics are absent: mcc, balanced_accuracy and auc if the targets have only one
    class; auc if a class is missing; mcc if the predictions have only one class; log_loss if the
    true class of a row has probability 0 (infinite); all metrics for non-finite probabilities.

    Args:
        target: True class (N,), integers from 0 to C - 1.
        probability: Probability of each class (N, C), C at least 2.

    Raises:
        ContractError: Shapes do not match, a target is not a class, or all numbers are finite but
            the rows are not probabilities.
    """
    target_N = validate_targets(target, what="targets")
    probability_NC = np.asarray(probability, np.float64)
    num_classes = probability_NC.shape[-1] if probability_NC.ndim == 2 else 0
    expected_shape = (target_N.size, max(2, num_classes))
    probability_NC = validate_predictions(probability, expected_shape, what="class probabilities")
    class_N = _to_classes(target_N, expected_shape[1])
    if reason := non_finite_reason(probability_NC, what="probabilities"):
        return undefined_metrics(METRIC_NAMES, reason)
    _require_probabilities(probability_NC)
    values, absent = _class_metrics(class_N, probability_NC.argmax(axis=1))
    for metrics in (_log_loss(class_N, probability_NC), _auc(class_N, probability_NC)):
        values, absent = {**values, **metrics.values}, {**absent, **metrics.absent}
    values |= _confidence_metrics(class_N, probability_NC)
    return TaskMetrics(
        values={name: values[name] for name in METRIC_NAMES if name in values}, absent=absent
    )


def _to_classes(target_N: NDArray[np.float64], num_classes: int) -> NDArray[np.int64]:
    invalid_rows = np.flatnonzero((target_N % 1 != 0) | (target_N < 0) | (target_N >= num_classes))
    if invalid_rows.size:
        raise ContractError(
            f"Targets must be classes 0 to {num_classes - 1}, got {invalid_rows.size} that are "
            f"not, first {target_N[invalid_rows[0]]:g} at row {invalid_rows[0]}.",
            cause="Classes are numbered from 1, or the model has too few outputs.",
            fix="Number the classes from 0, and pass one probability for each class.",
        )
    return target_N.astype(np.int64)


def _require_probabilities(probability_NC: NDArray[np.float64]) -> None:
    is_invalid_N = np.abs(probability_NC.sum(axis=1) - 1) > _SUM_TOLERANCE
    is_invalid_N |= (probability_NC < 0).any(axis=1)
    if is_invalid_N.any():
        row = int(is_invalid_N.argmax())
        raise ContractError(
            f"The probabilities of each row must be at least 0 and sum to 1, but "
            f"{is_invalid_N.sum()} of {is_invalid_N.size} rows violate this. In the first such row "
            f"({row}), the smallest probability is {probability_NC[row].min():.4g} and the sum is "
            f"{probability_NC[row].sum():.4g}.",
            cause="The values are logits or scores.",
            fix="Apply a softmax first.",
        )


def _class_metrics(
    class_N: NDArray[np.int64], predicted_N: NDArray[np.int64]
) -> tuple[dict[str, float], dict[str, str]]:
    # Imported here, because scikit-learn takes about a second and Dagster loads every module.
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    values = {
        # A class that occurs only in targets or only in predictions has F1 = 0 by definition.
        "macro_f1": float(f1_score(class_N, predicted_N, average="macro", zero_division=0.0)),
        "accuracy": float(accuracy_score(class_N, predicted_N)),
    }
    absent: dict[str, str] = {}
    if np.ptp(class_N) == 0:
        reason = f"all targets are class {class_N[0]}"
        absent |= {"balanced_accuracy": reason, "mcc": reason}
        return values, absent
    # scikit-learn's function is not used, because it warns about predicted classes that do not
    # occur in the targets.
    recalls = [float((predicted_N[class_N == c] == c).mean()) for c in np.unique(class_N)]
    values["balanced_accuracy"] = float(np.mean(recalls))
    if np.ptp(predicted_N) == 0:
        absent["mcc"] = f"all predictions are class {predicted_N[0]}"
    else:
        values["mcc"] = float(matthews_corrcoef(class_N, predicted_N))
    return values, absent


def _confidence_metrics(
    class_N: NDArray[np.int64], probability_NC: NDArray[np.float64]
) -> dict[str, float]:
    onehot_NC = np.eye(probability_NC.shape[1])[class_N]
    squares_N = ((probability_NC - onehot_NC) ** 2).sum(axis=1)
    return {
        "brier": float(squares_N.mean() / (2 if probability_NC.shape[1] == 2 else 1)),
        "calibration_error": calibration_error(
            probability_NC.max(axis=1),
            probability_NC.argmax(axis=1) == class_N,
            num_bins=CALIBRATION_BINS,
        ),
    }


def _log_loss(class_N: NDArray[np.int64], probability_NC: NDArray[np.float64]) -> TaskMetrics:
    true_probability_N = probability_NC[np.arange(class_N.size), class_N]
    if not (true_probability_N > 0).all():
        zero_rows = pluralize(int((true_probability_N == 0).sum()), "row")
        reason = f"infinite: the probability of the true class is 0 in {zero_rows}"
        return TaskMetrics(values={}, absent={"log_loss": reason})
    return TaskMetrics(values={"log_loss": float(-np.log(true_probability_N).mean())})


def _auc(class_N: NDArray[np.int64], probability_NC: NDArray[np.float64]) -> TaskMetrics:
    from sklearn.metrics import roc_auc_score

    num_classes = probability_NC.shape[1]
    missing_classes = sorted(set(range(num_classes)) - set(class_N.tolist()))
    if missing_classes:
        reason = f"no target is of class {', '.join(map(str, missing_classes))}"
        return TaskMetrics(values={}, absent={"auc": reason})
    if num_classes == 2:
        area = roc_auc_score(class_N, probability_NC[:, 1])
    else:
        # The mean is computed here, because scikit-learn requires rows that sum exactly to 1.
        area = np.mean(
            [roc_auc_score(class_N == c, probability_NC[:, c]) for c in range(num_classes)]
        )
    return TaskMetrics(values={"auc": float(area)})
