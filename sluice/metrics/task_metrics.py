"""Metrics of one task: defined values, and reasons for undefined ones."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sluice.base.errors import ContractError


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMetrics:
    """Metrics that could be computed and metrics that could not; no name is in both.

    >>> found = TaskMetrics(values={"rmse": 2.0}, absent={"r2": "the target is constant"})
    >>> found.numbers
    {'rmse': 2.0, 'r2': nan}
    """

    values: Mapping[str, float]
    """Finite numbers by name."""

    absent: Mapping[str, str] = field(default_factory=dict)
    """Reason, by name, why a metric is undefined on these rows; never replaced by 0."""

    @property
    def numbers(self) -> dict[str, float]:
        """All metrics of the task, with NaN for absent ones.

        ``Workload.metrics`` returns these: logs and averages need the same names on every fold,
        and a mean that includes NaN is NaN instead of the mean of the others.
        """
        return {**self.values, **dict.fromkeys(self.absent, math.nan)}


def all_undefined(names: Sequence[str], reason: str) -> TaskMetrics:
    """Return metrics that are all undefined for the same reason."""
    return TaskMetrics(values={}, absent=dict.fromkeys(names, reason))


def validate_targets(given: ArrayLike, *, what: str) -> NDArray[np.float64]:
    """Return the observed values as an array (N,) of finite numbers.

    Raises:
        ContractError: There is not one number per row, there are no rows, or a value is
            non-finite.
    """
    values_N = np.asarray(given, np.float64)
    if values_N.ndim != 1 or values_N.size == 0:
        raise ContractError(
            f"The {what} must be one number per row, (N,) with N at least 1, got {values_N.shape}.",
            fix="Pass a one-dimensional array with one number per test row.",
        )
    bad = np.flatnonzero(~np.isfinite(values_N))
    if bad.size:
        raise ContractError(
            f"The {what} must be finite, got {bad.size} of {values_N.size} that are not, first "
            f"{values_N[bad[0]]} at row {bad[0]}.",
            cause="The test rows include rows without a known outcome.",
            fix="Drop these rows where features are computed.",
        )
    return values_N


def validate_predictions(
    given: ArrayLike, shape: tuple[int, ...], *, what: str
) -> NDArray[np.float64]:
    """Return the predictions as an array of the given shape; values may be non-finite.

    Raises:
        ContractError: The predictions have another shape.
    """
    values = np.asarray(given, np.float64)
    if values.shape != shape:
        raise ContractError(
            f"The {what} must have the shape {shape}, got {values.shape}.",
            fix="Pass one prediction for each row, in row order.",
        )
    return values


def non_finite_reason(values: NDArray[np.float64], *, what: str) -> str:
    """Return the reason why the metrics of a diverged model are undefined, or "".

    Unlike non-finite targets this is a property of the model, so it is reported instead of raised:
    one diverged seed must not end an evaluation.
    """
    num_bad = int((~np.isfinite(values)).sum())
    return f"{num_bad} of {values.size} {what} are not finite" if num_bad else ""
