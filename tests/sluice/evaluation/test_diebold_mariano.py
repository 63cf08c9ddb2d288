"""Diebold-Mariano with the small-sample correction, against scipy, statsmodels and by hand."""

import math

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats

from sluice.evaluation.diebold_mariano import diebold_mariano
from tests.sluice.evaluation.loss_samples import ar1

GAIN_N = 0.1 + ar1(np.random.default_rng(0), 0.4, 120)
ONE_FOLD = np.zeros(120, np.int64)


def test_with_a_horizon_of_one_row_it_is_the_paired_t_test():
    textbook = stats.ttest_1samp(GAIN_N, 0.0, alternative="greater")

    found = diebold_mariano(GAIN_N, ONE_FOLD, horizon_rows=1)

    assert found == pytest.approx((textbook.statistic, textbook.pvalue))
    assert diebold_mariano(GAIN_N, ONE_FOLD, horizon_rows=0) == found


@pytest.mark.parametrize("horizon", [2, 5])
def test_overlapping_horizons_use_the_uniform_kernel_of_statsmodels(horizon):
    fitted = sm.OLS(GAIN_N, np.ones(120)).fit(
        cov_type="HAC",
        cov_kwds={"maxlags": horizon - 1, "kernel": "uniform", "use_correction": False},
    )
    small = math.sqrt((120 + 1 - 2 * horizon + horizon * (horizon - 1) / 120) / 120)

    found = diebold_mariano(GAIN_N, ONE_FOLD, horizon_rows=horizon)

    assert found.statistic == pytest.approx(float(fitted.tvalues[0]) * small)
    assert found.p_value == pytest.approx(stats.t.sf(found.statistic, 119))


def test_rows_of_two_folds_are_no_neighbours():
    gain_N = np.array([1.0, 2.0, 2.0, 5.0])
    apart = diebold_mariano(gain_N, np.array([0, 0, 1, 1]), horizon_rows=2)

    # By hand: deviations -1.5, -0.5, -0.5, 2.5; squares 9; pairs 0.75 and -1.25, not 0.25.
    variance = (9.0 + 2 * (0.75 - 1.25)) / 16
    corrected = math.sqrt((4 + 1 - 4 + 2 / 4) / 4)
    assert apart.statistic == pytest.approx(2.5 / math.sqrt(variance) * corrected)


@pytest.mark.parametrize(
    ("gain_N", "horizon"),
    [
        (np.full(10, 0.5), 1),  # nothing varies
        (np.tile([1.0, -1.0], 5), 2),  # full weights make the variance negative
        (np.array([1.0, math.nan, 2.0]), 1),
        (np.array([1.0]), 1),
        (np.arange(6.0), 9),  # a horizon longer than the rows
    ],
)
def test_what_cannot_be_computed_is_unknown(gain_N, horizon):
    found = diebold_mariano(gain_N, np.zeros(gain_N.size, np.int64), horizon_rows=horizon)

    assert math.isnan(found.p_value)
    assert math.isnan(found.statistic)
