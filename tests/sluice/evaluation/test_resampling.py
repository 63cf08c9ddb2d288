"""The two-way bootstrap equals arch and closed forms (STAT-1)."""

import math

import numpy as np
import pytest
from arch.bootstrap import CircularBlockBootstrap

from sluice.evaluation.estimate import ArmLosses
from sluice.evaluation.resampling import resampled_gains, two_way_interval
from sluice.evaluation.variance import circular_block_variance
from tests.sluice.evaluation.loss_samples import ar1

NUM_ROWS = 403
ONE_FOLD = np.zeros(NUM_ROWS, np.int64)
RULE = ArmLosses(loss_SN=np.zeros((1, NUM_ROWS)), is_deterministic=True)


def make_arm(loss_SN: np.ndarray) -> ArmLosses:
    return ArmLosses(loss_SN=loss_SN, is_deterministic=False)


def resample_gains(
    candidate: ArmLosses,
    reference: ArmLosses = RULE,
    fold_N=ONE_FOLD,
    *,
    block_length=10,
    resamples=4000,
):
    rng = np.random.default_rng(0)
    return resampled_gains(
        candidate, reference, fold_N, block_length=block_length, resamples=resamples, rng=rng
    )


def make_rows(rho: float = 0.6) -> np.ndarray:
    return ar1(np.random.default_rng(1), rho, NUM_ROWS)


@pytest.mark.parametrize("block_length", [1, 10, 50])
def test_with_one_seed_the_variance_equals_the_closed_form_of_the_circular_bootstrap(block_length):
    x_N = make_rows()

    gain_R = resample_gains(make_arm(x_N[None]), block_length=block_length)

    assert gain_R.mean() == pytest.approx(-x_N.mean(), abs=4 * gain_R.std() / math.sqrt(4000))
    assert gain_R.var() == pytest.approx(circular_block_variance(x_N, block_length), rel=0.1)


def test_with_one_seed_the_quantiles_equal_those_of_arch():
    x_N = make_rows()
    drawn = CircularBlockBootstrap(10, x_N, seed=np.random.default_rng(2))
    arch_R = np.array([-data[0].mean() for data, _ in drawn.bootstrap(3000)])

    gain_R = resample_gains(make_arm(x_N[None]))

    spread = arch_R.std()
    for q in (0.05, 0.5, 0.95):
        assert np.quantile(gain_R, q) == pytest.approx(np.quantile(arch_R, q), abs=0.12 * spread)


def test_variances_of_seeds_and_rows_are_added():
    effect_S1 = np.array([[-0.2], [0.0], [0.1], [0.1]])
    seed_variance = float(effect_S1.var()) / 4
    variance = seed_variance + circular_block_variance(make_rows(), 10)

    assert resample_gains(make_arm(make_rows() + effect_S1)).var() == pytest.approx(
        variance, rel=0.1
    )
    result_R = resample_gains(
        make_arm(make_rows() + effect_S1), make_arm(np.zeros((4, NUM_ROWS)) + effect_S1)
    )
    assert result_R.var() == pytest.approx(variance + seed_variance, rel=0.1)


def test_both_arms_use_the_same_resampled_rows():
    row_N = make_rows()

    gain_R = resample_gains(
        make_arm(np.stack([row_N, row_N]) - 1.0), make_arm(np.stack([row_N, row_N]))
    )

    assert gain_R == pytest.approx(np.ones(4000))


def test_no_block_spans_two_folds():
    """Each fold is resampled with its own number of rows, so a shift adds no variance."""
    fold_N = np.repeat([0, 1], [300, 103])

    assert resample_gains(make_arm(1.0 * fold_N[None]), fold_N=fold_N) == pytest.approx(
        np.full(4000, -103 / NUM_ROWS)
    )


def test_a_block_longer_than_a_fold_is_the_whole_fold():
    assert resample_gains(make_arm(make_rows()[None]), block_length=1000) == pytest.approx(
        np.full(4000, -make_rows().mean())
    )


def test_the_interval_consists_of_quantiles_and_is_nan_for_a_non_finite_loss():
    x_SN = np.stack([make_rows(), make_rows() + 0.1])
    arguments = {"block_length": 10, "alpha": 0.1, "resamples": 4000}

    low, high = two_way_interval(
        make_arm(x_SN), RULE, ONE_FOLD, rng=np.random.default_rng(0), **arguments
    )
    assert (low, high) == pytest.approx(np.quantile(resample_gains(make_arm(x_SN)), (0.1, 0.9)))
    x_SN[1, 7] = math.nan
    interval = two_way_interval(
        make_arm(x_SN), RULE, ONE_FOLD, rng=np.random.default_rng(0), **arguments
    )
    assert all(map(math.isnan, interval))
