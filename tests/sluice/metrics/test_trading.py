"""EVAL-1: return and risk metrics of a position."""

import math

import numpy as np
import pytest

from sluice.base.errors import ContractError
from sluice.metrics.trading import (
    NAMES,
    hit_rate,
    max_drawdown,
    sharpe,
    sortino,
    trading_metrics,
    turnover,
)


def test_sharpe_matches_manual_values():
    # Mean 1, sample deviation 2.
    assert sharpe(np.array([-1.0, 1.0, 3.0]), rows_per_year=4) == pytest.approx(1 / 2 * 2)


def test_sortino_matches_manual_values():
    # Mean 1; the squares of the losses 0 and 1 over three rows.
    found = sortino(np.array([-1.0, 1.0, 3.0]), rows_per_year=4)

    assert found == pytest.approx(1 / math.sqrt(1 / 3) * 2)


def test_ratios_do_not_change_with_the_size_of_the_position():
    returns = np.random.default_rng(1).normal(0.1, 1, 500)

    for ratio in (sharpe, sortino):
        assert ratio(returns * 7, rows_per_year=252) == pytest.approx(
            ratio(returns, rows_per_year=252)
        )


@pytest.mark.parametrize("returns", [[], [0.1], [0.1, 0.1]])
def test_a_ratio_that_is_not_defined_is_not_a_number(returns):
    assert math.isnan(sharpe(np.array(returns), rows_per_year=252))
    assert math.isnan(sortino(np.array(returns), rows_per_year=252))


def test_returns_that_are_not_numbers_are_not_hidden():
    assert math.isnan(sharpe(np.array([0.1, np.nan, -0.2]), rows_per_year=252))
    assert math.isnan(sortino(np.array([0.1, np.nan, -0.2]), rows_per_year=252))


@pytest.mark.parametrize(
    ("returns", "fall"),
    [
        ([0.1, 0.2], 0.0),
        ([-0.25], 0.25),
        ([1.0, -0.5, -0.5, 3.0], 0.75),
        ([0.5, -1.5, 9.0], 1.0),
        ([], 0.0),
    ],
)
def test_drawdown_is_the_deepest_fall_of_reinvested_wealth(returns, fall):
    assert max_drawdown(np.array(returns)) == pytest.approx(fall)


def test_drawdown_agrees_with_a_plain_loop():
    returns = np.random.default_rng(2).normal(0.001, 0.02, 500)

    wealth = peak = 1.0
    deepest = 0.0
    for value in returns:
        wealth *= 1 + value
        peak = max(peak, wealth)
        deepest = max(deepest, 1 - wealth / peak)

    assert max_drawdown(returns) == pytest.approx(deepest)


def test_constant_position_is_traded_once():
    assert turnover(np.full(10, 2.0), rows_per_year=10) == pytest.approx(2.0)
    assert turnover(np.array([1.0, -1.0]), rows_per_year=2) == pytest.approx(3.0)


def test_hit_rate_ignores_rows_with_zero_return():
    assert hit_rate(np.array([0.1, -0.2, 0.0, 0.3])) == pytest.approx(2 / 3)
    assert math.isnan(hit_rate(np.zeros(3)))


def test_return_of_a_position_is_its_size_times_the_asset_return():
    position, returns = np.array([1.0, -2.0, 0.5]), np.array([0.1, 0.1, -0.2])

    found = trading_metrics(position, returns, rows_per_year=252)

    assert tuple(found.values) == NAMES
    assert found.values["sharpe"] == sharpe(np.array([0.1, -0.2, -0.1]), rows_per_year=252)
    assert found.values["hit_rate"] == pytest.approx(1 / 3)


def test_undefined_ratio_is_absent_with_a_reason():
    found = trading_metrics(np.zeros(4), np.full(4, 0.1), rows_per_year=252)

    assert set(found.absent) == {"sharpe", "sortino", "hit_rate"}
    assert "nonzero return" in found.absent["hit_rate"]
    assert math.isnan(found.numbers["sharpe"])
    assert found.values == {"max_drawdown": 0.0, "turnover": 0.0}


def test_a_diverged_model_has_no_metrics_and_a_bad_truth_is_rejected():
    broken = np.array([1.0, np.nan])

    assert set(trading_metrics(broken, np.ones(2), rows_per_year=1).absent) == set(NAMES)
    with pytest.raises(ContractError, match=r"returns must be finite, got 1 of 2.* at row 1"):
        trading_metrics(np.ones(2), broken, rows_per_year=1)
    with pytest.raises(ContractError, match=r"positions must have the shape \(2,\), got \(3,\)"):
        trading_metrics(np.ones(3), np.ones(2), rows_per_year=1)
