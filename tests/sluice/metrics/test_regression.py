"""EVAL-1: metrics of point forecasts and quantile forecasts."""

import math

import numpy as np
import pytest
from scipy.stats import rankdata

from sluice.base.errors import ContractError
from sluice.metrics.regression import NAMES, quantile_metrics, regression_metrics


def test_known_answers_match_manual_values():
    found = regression_metrics([1.0, 2.0, 4.0], [2.0, 2.0, 2.0 + 1e-9]).values

    assert found["mae"] == pytest.approx(1.0)
    assert found["mse"] == pytest.approx(5 / 3)
    assert found["rmse"] == pytest.approx(math.sqrt(5 / 3))
    assert found["mape"] == pytest.approx((1 + 0 + 0.5) / 3)
    assert found["r2"] == pytest.approx(1 - 5 / (14 / 3))


def test_spearman_is_the_correlation_of_ranks():
    rng = np.random.default_rng(0)
    target = rng.normal(size=50)
    forecast = np.round(target + rng.normal(size=50), 1)

    found = regression_metrics(target, forecast).values["spearman"]

    assert found == pytest.approx(np.corrcoef(rankdata(target), rankdata(forecast))[0, 1])


def test_undefined_metric_is_absent_with_a_reason():
    found = regression_metrics([0.0, 0.0], [1.0, 2.0])

    assert found.absent == {
        "mape": "the target is 0 in 2 rows",
        "r2": "the targets are constant",
        "spearman": "the targets are constant",
    }
    assert regression_metrics([1.0, 2.0], [3.0, 3.0]).absent == {
        "spearman": "the forecasts are constant"
    }
    assert set(regression_metrics([5.0], [4.0]).values) == {"mae", "mse", "rmse", "mape"}


def test_a_diverged_model_has_no_metrics_and_a_bad_truth_is_rejected():
    found = regression_metrics([1.0, 2.0], [np.inf, 1.0])

    assert dict.fromkeys(NAMES, "1 of 2 forecasts are not finite") == found.absent
    with pytest.raises(ContractError, match=r"targets must be finite, got 1 of 2.*nan at row 0"):
        regression_metrics([np.nan, 1.0], [1.0, 1.0])
    with pytest.raises(ContractError, match=r"one number per row.* got \(2, 1\)"):
        regression_metrics([[1.0], [2.0]], [1.0, 2.0])


def test_pinball_matches_manual_values_and_its_minimum_at_the_true_quantile():
    found = quantile_metrics([1.0, 3.0], [[2.0, 2.0], [2.0, 5.0]], levels=(0.1, 0.9)).values

    assert found["pinball_0.1"] == pytest.approx((0.9 * 1 + 0.1 * 1) / 2)
    assert found["pinball_0.9"] == pytest.approx((0.1 * 1 + 0.1 * 2) / 2)
    assert (found["below_0.1"], found["below_0.9"]) == (0.5, 1.0)

    target = np.random.default_rng(0).normal(size=20_000)
    losses = [
        quantile_metrics(target, np.full((20_000, 1), at), levels=(0.9,)).values["pinball_0.9"]
        for at in (1.0, 1.2816, 1.6)
    ]
    assert min(losses) == losses[1]


@pytest.mark.parametrize("levels", [(), (0.5, 0.5), (0.9, 0.1), (0.0,), (1.0,), (math.nan,)])
def test_levels_that_do_not_rise_inside_0_to_1_are_rejected(levels):
    with pytest.raises(ContractError, match="must be ascending"):
        quantile_metrics([1.0], np.ones((1, len(levels))), levels=levels)


def test_one_broken_quantile_leaves_the_others():
    found = quantile_metrics([1.0], [[np.nan, 2.0]], levels=(0.1, 0.9))

    assert set(found.absent) == {"pinball_0.1", "below_0.1"}
    assert set(found.values) == {"pinball_0.9", "below_0.9"}
