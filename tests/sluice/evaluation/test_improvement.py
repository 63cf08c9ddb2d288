"""The probability of improvement equals the tests of Brunner-Munzel and Mann-Whitney."""

import math

import numpy as np
import pytest
from scipy import stats

from sluice.evaluation.estimate import ArmLosses
from sluice.evaluation.improvement import probability_of_improvement

NUM_ROWS = 200
ONE_FOLD = np.zeros(NUM_ROWS, np.int64)


def make_arm(loss_SN, *, is_deterministic=False) -> ArmLosses:
    return ArmLosses(loss_SN=np.asarray(loss_SN, float), is_deterministic=is_deterministic)


def run_improvement(candidate, reference, *, alpha=0.05, block_length=1):
    return probability_of_improvement(
        candidate, reference, ONE_FOLD, block_length=block_length, alpha=alpha
    )


def test_constant_losses_per_seed_give_the_brunner_munzel_test():
    rng = np.random.default_rng(0)
    candidate_S, reference_S = rng.normal(0.0, 1.0, 7), rng.normal(0.6, 2.0, 9)
    expected = stats.brunnermunzel(candidate_S, reference_S, alternative="less")

    result = run_improvement(
        make_arm(np.repeat(candidate_S[:, None], NUM_ROWS, 1)),
        make_arm(np.repeat(reference_S[:, None], NUM_ROWS, 1)),
    )

    win_share = stats.mannwhitneyu(reference_S, candidate_S).statistic / 63
    assert result.probability == pytest.approx(win_share)
    # The lower bound at the test's own p-value is one half.
    at_p = run_improvement(
        make_arm(np.repeat(candidate_S[:, None], NUM_ROWS, 1)),
        make_arm(np.repeat(reference_S[:, None], NUM_ROWS, 1)),
        alpha=float(expected.pvalue),
    )
    assert at_p.low == pytest.approx(0.5, abs=1e-6)


def test_two_rules_give_the_share_of_rows_with_the_bound_of_the_t_test():
    win_N = np.random.default_rng(1).permutation(np.repeat([1.0, 0.5, 0.0], [110, 20, 70]))
    candidate, reference = (
        make_arm(1 - win_N[None], is_deterministic=True),
        make_arm(np.full((1, NUM_ROWS), 0.5), is_deterministic=True),
    )
    expected = stats.ttest_1samp(win_N, 0.0, alternative="greater").confidence_interval(0.95)

    result = run_improvement(candidate, reference)

    assert result.probability == pytest.approx(0.6)  # (110 + 20 / 2) / 200
    assert result.low == pytest.approx(expected.low)
    assert result.high == pytest.approx(1.2 - expected.low)


def test_swapping_the_arms_mirrors_the_interval_and_dependence_widens_it():
    rng = np.random.default_rng(2)
    candidate, reference = (
        make_arm(rng.normal(size=(5, NUM_ROWS))),
        make_arm(rng.normal(0.5, 1, (6, NUM_ROWS))),
    )

    forward, backward = run_improvement(candidate, reference), run_improvement(reference, candidate)

    assert (backward.probability, backward.low, backward.high) == pytest.approx(
        (1 - forward.probability, 1 - forward.high, 1 - forward.low)
    )
    assert forward.probability > 0.5
    autocorrelated = make_arm(candidate.loss_SN + 2 * np.sin(np.arange(NUM_ROWS) / 10))
    assert (
        run_improvement(autocorrelated, reference, block_length=20).low
        < run_improvement(autocorrelated, reference).low
    )


def test_bounds_are_probabilities_or_nan():
    better = run_improvement(
        make_arm(np.arange(10.0).reshape(5, 2).repeat(100, 1)), make_arm(np.full((5, 200), 8.5))
    )
    constant = run_improvement(make_arm(np.zeros((5, NUM_ROWS))), make_arm(np.ones((5, NUM_ROWS))))
    bad_SN = np.zeros((5, NUM_ROWS))
    bad_SN[1, 3] = math.nan

    assert 0 <= better.low <= better.probability <= better.high <= 1
    assert constant.probability == 1.0
    assert math.isnan(constant.low)
    assert all(map(math.isnan, run_improvement(make_arm(bad_SN), make_arm(np.ones((5, NUM_ROWS))))))
