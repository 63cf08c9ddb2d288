"""The corrected Diebold-Mariano test equals scipy, statsmodels and manual results."""

import math

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats

from sluice.evaluation.diebold_mariano import diebold_mariano
from tests.sluice.evaluation.loss_samples import ar1

GAIN_N = 0.1 + ar1(np.random.default_rng(0), 0.4, 120)
ONE_FOLD = np.zeros(120, np.int64)


def test_a_horizon_of_one_row_gives_the_paired_t_test():
    expected = stats.ttest_1samp(GAIN_N, 0.0, alternative="greater")

    result = diebold_mariano(GAIN_N, ONE_FOLD, horizon_rows=1)

    assert result == pytest.approx((expected.statistic, expected.pvalue))
    assert diebold_mariano(GAIN_N, ONE_FOLD, horizon_rows=0) == result


@pytest.mark.parametrize("horizon", [2, 5])
def test_overlapping_horizons_give_the_uniform_kernel_of_statsmodels(horizon):
    regression = sm.OLS(GAIN_N, np.ones(120)).fit(
        cov_type="HAC",
        cov_kwds={"maxlags": horizon - 1, "kernel": "uniform", "use_correction": False},
    )
    correction = math.sqrt((120 + 1 - 2 * horizon + horizon * (horizon - 1) / 120) / 120)

    result = diebold_mariano(GAIN_N, ONE_FOLD, horizon_rows=horizon)

    assert result.statistic == pytest.approx(float(regression.tvalues[0]) * correction)
    assert result.p_value == pytest.approx(stats.t.sf(result.statistic, 119))


def test_autocovariances_do_not_span_two_folds():
    gain_N = np.array([1.0, 2.0, 2.0, 5.0])
    result = diebold_mariano(gain_N, np.array([0, 0, 1, 1]), horizon_rows=2)

    # Deviations -1.5, -0.5, -0.5, 2.5; squares 9; pairs 0.75 and -1.25, not 0.25.
    variance = (9.0 + 2 * (0.75 - 1.25)) / 16
    corrected = math.sqrt((4 + 1 - 4 + 2 / 4) / 4)
    assert result.statistic == pytest.approx(2.5 / math.sqrt(variance) * corrected)


@pytest.mark.parametrize(
    ("gain_N", "horizon"),
    [
        (np.full(10, 0.5), 1),  # no variance
        (np.tile([1.0, -1.0], 5), 2),  # full weights make the variance negative
        (np.array([1.0, math.nan, 2.0]), 1),
        (np.array([1.0]), 1),
        (np.arange(6.0), 9),  # a horizon longer than the rows
    ],
)
def test_invalid_inputs_give_nan(gain_N, horizon):
    result = diebold_mariano(gain_N, np.zeros(gain_N.size, np.int64), horizon_rows=horizon)

    assert math.isnan(result.p_value)
    assert math.isnan(result.statistic)
