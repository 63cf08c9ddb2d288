"""Metrics of one task: the numbers that are defined, and why the others are not (EVAL-1)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sluice.base.errors import ContractError


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMetrics:
    """What could be computed and what could not; no name is in both.

    >>> found = TaskMetrics(values={"rmse": 2.0}, absent={"r2": "the target is constant"})
    >>> found.numbers
    {'rmse': 2.0, 'r2': nan}
    """

    values: Mapping[str, float]
    """Finite numbers by name."""

    absent: Mapping[str, str] = field(default_factory=dict)
    """Why a metric of the task has no value on these rows; never a silent 0."""

    @property
    def numbers(self) -> dict[str, float]:
        """All names of the task, NaN where a metric is absent.

        What ``Workload.metrics`` returns: logs and averages ask for the same names on every fold,
        and a mean with a NaN in it is NaN, not the mean of the rest.
        """
        return {**self.values, **dict.fromkeys(self.absent, math.nan)}


def all_absent(names: Sequence[str], reason: str) -> TaskMetrics:
    """Return metrics of which none could be computed, for one reason."""
    return TaskMetrics(values={}, absent=dict.fromkeys(names, reason))


def truth_values(given: ArrayLike, *, what: str) -> NDArray[np.float64]:
    """Return what predictions are judged by, (N,) of finite numbers.

    Raises:
        ContractError: It is not one number per row, there is no row, or one is not finite.
    """
    values_N = np.asarray(given, np.float64)
    if values_N.ndim != 1 or values_N.size == 0:
        raise ContractError(
            f"The {what} must be one number per row, (N,) with N at least 1, got {values_N.shape}.",
            fix="Give one axis, one number per test row.",
        )
    bad = np.flatnonzero(~np.isfinite(values_N))
    if bad.size:
        raise ContractError(
            f"The {what} must be finite, got {bad.size} of {values_N.size} that are not, first "
            f"{values_N[bad[0]]} at row {bad[0]}.",
            cause="Rows without a known outcome are among the test rows.",
            fix="Leave such rows out where features are computed.",
        )
    return values_N


def predicted_values(given: ArrayLike, shape: tuple[int, ...], *, what: str) -> NDArray[np.float64]:
    """Return what a model says of the rows; numbers that are not finite may be among them.

    Raises:
        ContractError: It does not have ``shape``.
    """
    values = np.asarray(given, np.float64)
    if values.shape != shape:
        raise ContractError(
            f"The {what} must be {shape}, got {values.shape}.",
            fix="Give one prediction for each row, in row order.",
        )
    return values


def why_not_finite(values: NDArray[np.float64], *, what: str) -> str:
    """Return why a model that diverged has no metrics, or nothing.

    That is a finding about the model, unlike a truth that is not finite: it is said, not refused,
    so that one diverged seed does not end an evaluation.
    """
    num_bad = int((~np.isfinite(values)).sum())
    return f"{num_bad} of {values.size} {what} are not finite" if num_bad else ""
