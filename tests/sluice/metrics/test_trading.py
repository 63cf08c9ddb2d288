"""Return and risk metrics of a position (EVAL-1)."""

import math

import numpy as np
import pytest

from sluice.base.errors import ContractError
from sluice.metrics.trading import (
    METRIC_NAMES,
    hit_rate,
    max_drawdown,
    sharpe,
    sortino,
    trading_metrics,
    turnover,
)


def test_sharpe_matches_manual_values():
    # Mean 1, sample standard deviation 2.
    assert sharpe(np.array([-1.0, 1.0, 3.0]), rows_per_year=4) == pytest.approx(1 / 2 * 2)


def test_sortino_matches_manual_values():
    # Mean 1; the mean of the squared losses 1, 0 and 0 is 1/3.
    result = sortino(np.array([-1.0, 1.0, 3.0]), rows_per_year=4)

    assert result == pytest.approx(1 / math.sqrt(1 / 3) * 2)


def test_sharpe_and_sortino_do_not_depend_on_position_size():
    returns = np.random.default_rng(1).normal(0.1, 1, 500)

    for ratio in (sharpe, sortino):
        assert ratio(returns * 7, rows_per_year=252) == pytest.approx(
            ratio(returns, rows_per_year=252)
        )


@pytest.mark.parametrize("returns", [[], [0.1], [0.1, 0.1]])
def test_undefined_ratios_are_nan(returns):
    assert math.isnan(sharpe(np.array(returns), rows_per_year=252))
    assert math.isnan(sortino(np.array(returns), rows_per_year=252))


def test_ratios_of_returns_with_nan_are_nan():
    assert math.isnan(sharpe(np.array([0.1, np.nan, -0.2]), rows_per_year=252))
    assert math.isnan(sortino(np.array([0.1, np.nan, -0.2]), rows_per_year=252))


@pytest.mark.parametrize(
    ("returns", "expected"),
    [
        ([0.1, 0.2], 0.0),
        ([-0.25], 0.25),
        ([1.0, -0.5, -0.5, 3.0], 0.75),
        ([0.5, -1.5, 9.0], 1.0),
        ([], 0.0),
    ],
)
def test_max_drawdown_is_the_largest_relative_loss_of_compounded_wealth(returns, expected):
    assert max_drawdown(np.array(returns)) == pytest.approx(expected)


def test_max_drawdown_equals_a_python_loop():
    returns = np.random.default_rng(2).normal(0.001, 0.02, 500)

    wealth = peak = 1.0
    expected = 0.0
    for value in returns:
        wealth *= 1 + value
        peak = max(peak, wealth)
        expected = max(expected, 1 - wealth / peak)

    assert max_drawdown(returns) == pytest.approx(expected)


def test_turnover_counts_the_first_trade_and_every_change():
    assert turnover(np.full(10, 2.0), rows_per_year=10) == pytest.approx(2.0)
    assert turnover(np.array([1.0, -1.0]), rows_per_year=2) == pytest.approx(3.0)


def test_hit_rate_ignores_rows_with_zero_return():
    assert hit_rate(np.array([0.1, -0.2, 0.0, 0.3])) == pytest.approx(2 / 3)
    assert math.isnan(hit_rate(np.zeros(3)))


def test_return_of_a_position_is_its_size_times_the_asset_return():
    position, returns = np.array([1.0, -2.0, 0.5]), np.array([0.1, 0.1, -0.2])

    result = trading_metrics(position, returns, rows_per_year=252)

    assert tuple(result.values) == METRIC_NAMES
    assert result.values["sharpe"] == sharpe(np.array([0.1, -0.2, -0.1]), rows_per_year=252)
    assert result.values["hit_rate"] == pytest.approx(1 / 3)


def test_undefined_ratio_is_absent_with_a_reason():
    result = trading_metrics(np.zeros(4), np.full(4, 0.1), rows_per_year=252)

    assert set(result.absent) == {"sharpe", "sortino", "hit_rate"}
    assert "nonzero return" in result.absent["hit_rate"]
    assert math.isnan(result.numbers["sharpe"])
    assert result.values == {"max_drawdown": 0.0, "turnover": 0.0}


def test_non_finite_positions_have_no_metrics_and_invalid_returns_are_rejected():
    with_nan = np.array([1.0, np.nan])

    assert set(trading_metrics(with_nan, np.ones(2), rows_per_year=1).absent) == set(METRIC_NAMES)
    with pytest.raises(ContractError, match=r"returns must be finite, got 1 of 2.* at row 1"):
        trading_metrics(np.ones(2), with_nan, rows_per_year=1)
    with pytest.raises(ContractError, match=r"positions must have the shape \(2,\), got \(3,\)"):
        trading_metrics(np.ones(3), np.ones(2), rows_per_year=1)
