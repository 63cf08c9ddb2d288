"""STAT-1: the two-way bootstrap against arch, closed forms and hand counts."""

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


def arm(loss_SN: np.ndarray) -> ArmLosses:
    return ArmLosses(loss_SN=loss_SN, is_deterministic=False)


def gains(
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


def rows(rho: float = 0.6) -> np.ndarray:
    return ar1(np.random.default_rng(1), rho, NUM_ROWS)


@pytest.mark.parametrize("block_length", [1, 10, 50])
def test_with_one_seed_the_spread_is_the_closed_form_of_the_circular_bootstrap(block_length):
    x_N = rows()

    gain_R = gains(arm(x_N[None]), block_length=block_length)

    assert gain_R.mean() == pytest.approx(-x_N.mean(), abs=4 * gain_R.std() / math.sqrt(4000))
    assert gain_R.var() == pytest.approx(circular_block_variance(x_N, block_length), rel=0.1)


def test_with_one_seed_the_quantiles_are_those_of_arch():
    x_N = rows()
    drawn = CircularBlockBootstrap(10, x_N, seed=np.random.default_rng(2))
    theirs_R = np.array([-data[0].mean() for data, _ in drawn.bootstrap(3000)])

    ours_R = gains(arm(x_N[None]))

    spread = theirs_R.std()
    for q in (0.05, 0.5, 0.95):
        assert np.quantile(ours_R, q) == pytest.approx(np.quantile(theirs_R, q), abs=0.12 * spread)


def test_seeds_and_rows_add_up():
    own_S1 = np.array([[-0.2], [0.0], [0.1], [0.1]])
    seeds = float(own_S1.var()) / 4
    whole = seeds + circular_block_variance(rows(), 10)

    assert gains(arm(rows() + own_S1)).var() == pytest.approx(whole, rel=0.1)
    both = gains(arm(rows() + own_S1), arm(np.zeros((4, NUM_ROWS)) + own_S1))
    assert both.var() == pytest.approx(whole + seeds, rel=0.1)


def test_both_arms_share_the_rows_drawn():
    hard_N = rows()

    gain_R = gains(arm(np.stack([hard_N, hard_N]) - 1.0), arm(np.stack([hard_N, hard_N])))

    assert gain_R == pytest.approx(np.ones(4000))


def test_no_block_spans_two_folds():
    """A shift between folds is no uncertainty: each fold is drawn as often as it has rows."""
    fold_N = np.repeat([0, 1], [300, 103])

    assert gains(arm(1.0 * fold_N[None]), fold_N=fold_N) == pytest.approx(
        np.full(4000, -103 / NUM_ROWS)
    )


def test_a_block_longer_than_a_fold_is_the_whole_fold():
    assert gains(arm(rows()[None]), block_length=1000) == pytest.approx(
        np.full(4000, -rows().mean())
    )


def test_the_interval_is_the_quantiles_and_a_bad_loss_makes_it_unknown():
    x_SN = np.stack([rows(), rows() + 0.1])
    kind = {"block_length": 10, "alpha": 0.1, "resamples": 4000}

    low, high = two_way_interval(arm(x_SN), RULE, ONE_FOLD, rng=np.random.default_rng(0), **kind)
    assert (low, high) == pytest.approx(np.quantile(gains(arm(x_SN)), (0.1, 0.9)))
    x_SN[1, 7] = math.nan
    bad = two_way_interval(arm(x_SN), RULE, ONE_FOLD, rng=np.random.default_rng(0), **kind)
    assert all(map(math.isnan, bad))
