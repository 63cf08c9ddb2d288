"""Computes metrics of point forecasts and of quantile forecasts.

Shape legend: N = rows, Q = quantiles.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from sluice.base.errors import ContractError
from sluice.base.pluralize import pluralize
from sluice.metrics.task_metrics import (
    TaskMetrics,
    non_finite_reason,
    undefined_metrics,
    validate_predictions,
    validate_targets,
)

METRIC_NAMES = ("mae", "mse", "rmse", "mape", "r2", "spearman")
"""Names of the metrics of ``regression_metrics``."""


def regression_metrics(target: ArrayLike, forecast: ArrayLike) -> TaskMetrics:
    """Return mae, rmse [target units], mse [target units squared], mape [rate], r2, spearman.

    spearman is the rank correlation.

    Undefined metrics are absent: mape if a target is 0; r2 and spearman if the targets are
    constant; spearman if the forecasts are constant; all of them for non-finite forecasts.

    Args:
        target: Observed values (N,).
        forecast: Forecasts (N,).

    Raises:
        ContractError: Shapes do not match, or a target is non-finite.
    """
    target_N = validate_targets(target, what="targets")
    forecast_N = validate_predictions(forecast, target_N.shape, what="forecasts")
    if reason := non_finite_reason(forecast_N, what="forecasts"):
        return undefined_metrics(METRIC_NAMES, reason)
    # Imported here, because both libraries take about a second and Dagster loads every module.
    from scipy.stats import spearmanr
    from sklearn.metrics import (
        mean_absolute_error,
        mean_absolute_percentage_error,
        mean_squared_error,
        r2_score,
    )

    mse = float(mean_squared_error(target_N, forecast_N))

    values = {
        "mae": float(mean_absolute_error(target_N, forecast_N)),
        "mse": mse,
        "rmse": math.sqrt(mse),
    }
    absent: dict[str, str] = {}
    if num_zeros := int((target_N == 0).sum()):
        absent["mape"] = f"the target is 0 in {pluralize(num_zeros, 'row')}"
    else:
        values["mape"] = float(mean_absolute_percentage_error(target_N, forecast_N))
    constant_reason = "the targets are constant" if np.ptp(target_N) == 0 else ""
    if constant_reason:
        absent["r2"] = constant_reason
    else:
        values["r2"] = float(r2_score(target_N, forecast_N))
    if constant_reason or np.ptp(forecast_N) == 0:
        absent["spearman"] = constant_reason or "the forecasts are constant"
    else:
        values["spearman"] = float(spearmanr(target_N, forecast_N).statistic)
    return TaskMetrics(values=values, absent=absent)


def quantile_metrics(
    target: ArrayLike, forecast: ArrayLike, *, levels: Sequence[float]
) -> TaskMetrics:
    """Return the pinball loss [target units] and the share of targets below each quantile.

    For the level 0.1 the names are ``pinball_0.1`` and ``below_0.1``. The value of ``below_0.1``
    should be close to 0.1. Both are absent for a quantile with non-finite forecasts.

    Args:
        target: Observed values (N,).
        forecast: Forecast quantiles (N, Q).
        levels: The Q levels, ascending, each in (0, 1).

    Raises:
        ContractError: Shapes do not match, a target is non-finite, or the levels are not ascending.
    """
    if not levels or not all(
        low < high for low, high in zip((0.0, *levels), (*levels, 1.0), strict=True)
    ):
        raise ContractError(
            f"Levels of quantiles must be ascending and within (0, 1), got {tuple(levels)}.",
            fix="Sort the levels, remove duplicates, and pass 0.1 for the 10 % quantile.",
        )
    target_N = validate_targets(target, what="targets")
    forecast_NQ = validate_predictions(forecast, (target_N.size, len(levels)), what="quantiles")
    from sklearn.metrics import mean_pinball_loss

    values: dict[str, float] = {}
    absent: dict[str, str] = {}
    for level, forecast_N in zip(levels, forecast_NQ.T, strict=True):
        names = (f"pinball_{level:g}", f"below_{level:g}")
        if reason := non_finite_reason(forecast_N, what="forecasts"):
            absent |= dict.fromkeys(names, reason)
            continue
        values[names[0]] = float(mean_pinball_loss(target_N, forecast_N, alpha=level))
        values[names[1]] = float((target_N < forecast_N).mean())
    return TaskMetrics(values=values, absent=absent)
