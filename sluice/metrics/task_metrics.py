"""Metrics of one task: the values of defined metrics, and the reasons for undefined metrics."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sluice.base.errors import ContractError


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMetrics:
    """Metrics that could be computed and metrics that could not; no name is in both.

    >>> metrics = TaskMetrics(values={"rmse": 2.0}, absent={"r2": "the target is constant"})
    >>> metrics.numbers
    {'rmse': 2.0, 'r2': nan}
    """

    values: Mapping[str, float]
    """Finite numbers by name."""

    absent: Mapping[str, str] = field(default_factory=dict)
    """Reason why a metric is undefined on these rows, by name. Such a metric is never reported as
    0."""

    @property
    def numbers(self) -> dict[str, float]:
        """All metrics of the task, with NaN for absent metrics.

        ``Workload.metrics`` should return these numbers. Logs and averages need the same names on
        every fold, and a mean over folds must be NaN if the metric of one fold is NaN.
        """
        return {**self.values, **dict.fromkeys(self.absent, math.nan)}


def undefined_metrics(names: Sequence[str], reason: str) -> TaskMetrics:
    """Return metrics that are all undefined for the same reason."""
    return TaskMetrics(values={}, absent=dict.fromkeys(names, reason))


def validate_targets(targets: ArrayLike, *, what: str) -> NDArray[np.float64]:
    """Return the observed values as an array (N,) of finite numbers.

    Raises:
        ContractError: There is not one number per row, there are no rows, or a value is
            non-finite.
    """
    values_N = np.asarray(targets, np.float64)
    if values_N.ndim != 1 or values_N.size == 0:
        raise ContractError(
            f"The {what} must be one number per row, (N,) with N at least 1, got {values_N.shape}.",
            fix="Pass a one-dimensional array with one number per test row.",
        )
    invalid_rows = np.flatnonzero(~np.isfinite(values_N))
    if invalid_rows.size:
        raise ContractError(
            f"The {what} must be finite, got {invalid_rows.size} of {values_N.size} that are not, "
            f"first {values_N[invalid_rows[0]]} at row {invalid_rows[0]}.",
            cause="The test rows include rows without a known outcome.",
            fix="Drop these rows in the function that computes the features.",
        )
    return values_N


def validate_predictions(
    predictions: ArrayLike, shape: tuple[int, ...], *, what: str
) -> NDArray[np.float64]:
    """Return the predictions as an array of the given shape; values may be non-finite.

    Raises:
        ContractError: The predictions have another shape.
    """
    values = np.asarray(predictions, np.float64)
    if values.shape != shape:
        raise ContractError(
            f"The {what} must have the shape {shape}, got {values.shape}.",
            fix="Pass one prediction for each row, in row order.",
        )
    return values


def non_finite_reason(values: NDArray[np.float64], *, what: str) -> str:
    """Return the reason why metrics are undefined if a value is non-finite, or "".

    Non-finite targets raise an error, but non-finite predictions are only reported: a diverged
    model makes them, and one diverged seed must not end an evaluation.
    """
    num_nonfinite = int((~np.isfinite(values)).sum())
    return f"{num_nonfinite} of {values.size} {what} are not finite" if num_nonfinite else ""
