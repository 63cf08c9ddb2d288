"""The sign-flip p-value equals that of scipy and includes the variance of seeds."""

import math

import numpy as np
import pytest
from scipy import stats

from sluice.evaluation.estimate import ArmLosses
from sluice.evaluation.sign_flip import sign_flip_p
from tests.sluice.evaluation.loss_samples import make_seed_effects

NUM_ROWS = 60
ONE_FOLD = np.zeros(NUM_ROWS, np.int64)
RULE = ArmLosses(loss_SN=np.zeros((1, NUM_ROWS)), is_deterministic=True)


def p_value(loss_SN, fold_N=ONE_FOLD, *, block_length=5, resamples=8000):
    return sign_flip_p(
        ArmLosses(loss_SN=loss_SN, is_deterministic=False),
        RULE,
        fold_N,
        block_length=block_length,
        resamples=resamples,
        rng=np.random.default_rng(0),
    )


@pytest.mark.parametrize("mean", [-0.3, 0.0, 0.2, 0.4])
def test_without_seed_variance_the_p_value_equals_scipys_exact_test_of_blocks(mean):
    gain_N = np.random.default_rng(4).normal(mean, 1.0, NUM_ROWS)
    block_B = gain_N.reshape(12, 5).sum(axis=1)
    exact = stats.permutation_test(
        (block_B,), np.sum, permutation_type="samples", alternative="greater", n_resamples=5000
    )

    assert p_value(-gain_N[None]) == pytest.approx(exact.pvalue, abs=0.015)


def test_seed_variance_raises_the_p_value():
    gain_N = 0.1 + 1e-6 * np.arange(NUM_ROWS)

    without_seed_variance = p_value(-gain_N + make_seed_effects(5, 1e-9))
    with_seed_variance = p_value(-gain_N + make_seed_effects(5, 1.0))

    assert without_seed_variance == pytest.approx(2**-12, abs=1e-3)
    # The standard error of the seeds is 0.447; 0.1 is a fifth of it.
    assert 0.3 < with_seed_variance < 0.5


def test_no_block_spans_two_folds():
    fold_N = np.repeat([0, 1], [33, 27])
    gain_N = np.full(NUM_ROWS, 0.1) + 1e-9 * np.arange(NUM_ROWS)

    # 7 blocks in 33 rows and 6 in 27: all 13 must keep their sign.
    assert p_value(-gain_N[None], fold_N, resamples=40_000) == pytest.approx(2**-13, abs=1e-4)


def test_the_p_value_is_never_zero_and_nan_for_a_non_finite_loss():
    loss_SN = -np.ones((5, NUM_ROWS)) + make_seed_effects(5, 1e-9)

    assert p_value(loss_SN, block_length=1, resamples=99) == 0.01
    loss_SN[2, 3] = math.nan
    assert math.isnan(p_value(loss_SN))
