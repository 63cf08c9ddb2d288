"""Metrics of point forecasts and quantile forecasts (EVAL-1)."""

import math

import numpy as np
import pytest
from scipy.stats import rankdata

from sluice.base.errors import ContractError
from sluice.metrics.regression import METRIC_NAMES, quantile_metrics, regression_metrics


def test_metrics_match_manual_values():
    result = regression_metrics([1.0, 2.0, 4.0], [2.0, 2.0, 2.0 + 1e-9]).values

    assert result["mae"] == pytest.approx(1.0)
    assert result["mse"] == pytest.approx(5 / 3)
    assert result["rmse"] == pytest.approx(math.sqrt(5 / 3))
    assert result["mape"] == pytest.approx((1 + 0 + 0.5) / 3)
    assert result["r2"] == pytest.approx(1 - 5 / (14 / 3))


def test_spearman_is_the_correlation_of_ranks():
    rng = np.random.default_rng(0)
    target = rng.normal(size=50)
    forecast = np.round(target + rng.normal(size=50), 1)

    result = regression_metrics(target, forecast).values["spearman"]

    assert result == pytest.approx(np.corrcoef(rankdata(target), rankdata(forecast))[0, 1])


def test_undefined_metric_is_absent_with_a_reason():
    result = regression_metrics([0.0, 0.0], [1.0, 2.0])

    assert result.absent == {
        "mape": "the target is 0 in 2 rows",
        "r2": "the targets are constant",
        "spearman": "the targets are constant",
    }
    assert regression_metrics([1.0, 2.0], [3.0, 3.0]).absent == {
        "spearman": "the forecasts are constant"
    }
    assert set(regression_metrics([5.0], [4.0]).values) == {"mae", "mse", "rmse", "mape"}


def test_non_finite_forecasts_have_no_metrics_and_invalid_targets_are_rejected():
    result = regression_metrics([1.0, 2.0], [np.inf, 1.0])

    assert dict.fromkeys(METRIC_NAMES, "1 of 2 forecasts are not finite") == result.absent
    with pytest.raises(ContractError, match=r"targets must be finite, got 1 of 2.*nan at row 0"):
        regression_metrics([np.nan, 1.0], [1.0, 1.0])
    with pytest.raises(ContractError, match=r"one number per row.* got \(2, 1\)"):
        regression_metrics([[1.0], [2.0]], [1.0, 2.0])


def test_pinball_loss_matches_manual_values_and_is_minimal_at_the_quantile():
    result = quantile_metrics([1.0, 3.0], [[2.0, 2.0], [2.0, 5.0]], levels=(0.1, 0.9)).values

    assert result["pinball_0.1"] == pytest.approx((0.9 * 1 + 0.1 * 1) / 2)
    assert result["pinball_0.9"] == pytest.approx((0.1 * 1 + 0.1 * 2) / 2)
    assert (result["below_0.1"], result["below_0.9"]) == (0.5, 1.0)

    target = np.random.default_rng(0).normal(size=20_000)
    losses = [
        quantile_metrics(target, np.full((20_000, 1), forecast), levels=(0.9,)).values[
            "pinball_0.9"
        ]
        for forecast in (1.0, 1.2816, 1.6)
    ]
    assert min(losses) == losses[1]


@pytest.mark.parametrize("levels", [(), (0.5, 0.5), (0.9, 0.1), (0.0,), (1.0,), (math.nan,)])
def test_levels_must_be_ascending_between_0_and_1(levels):
    with pytest.raises(ContractError, match="must be ascending"):
        quantile_metrics([1.0], np.ones((1, len(levels))), levels=levels)


def test_non_finite_quantile_does_not_affect_other_quantiles():
    result = quantile_metrics([1.0], [[np.nan, 2.0]], levels=(0.1, 0.9))

    assert set(result.absent) == {"pinball_0.1", "below_0.1"}
    assert set(result.values) == {"pinball_0.9", "below_0.9"}
