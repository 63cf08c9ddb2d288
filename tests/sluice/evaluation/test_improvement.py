"""The probability of improvement, against Brunner-Munzel and Mann-Whitney."""

import math

import numpy as np
import pytest
from scipy import stats

from sluice.evaluation.estimate import ArmLosses
from sluice.evaluation.improvement import probability_of_improvement

NUM_ROWS = 200
ONE_FOLD = np.zeros(NUM_ROWS, np.int64)


def arm(loss_SN, *, is_deterministic=False) -> ArmLosses:
    return ArmLosses(loss_SN=np.asarray(loss_SN, float), is_deterministic=is_deterministic)


def chance(candidate, reference, *, alpha=0.05, block_length=1):
    return probability_of_improvement(
        candidate, reference, ONE_FOLD, block_length=block_length, alpha=alpha
    )


def test_with_losses_that_are_one_number_a_seed_it_is_brunner_and_munzels_test():
    rng = np.random.default_rng(0)
    ours_S, theirs_S = rng.normal(0.0, 1.0, 7), rng.normal(0.6, 2.0, 9)
    textbook = stats.brunnermunzel(ours_S, theirs_S, alternative="less")

    found = chance(
        arm(np.repeat(ours_S[:, None], NUM_ROWS, 1)), arm(np.repeat(theirs_S[:, None], NUM_ROWS, 1))
    )

    pairs = stats.mannwhitneyu(theirs_S, ours_S).statistic / 63
    assert found.probability == pytest.approx(pairs)
    # The lower bound at the test's own p-value is one half.
    at_p = chance(
        arm(np.repeat(ours_S[:, None], NUM_ROWS, 1)),
        arm(np.repeat(theirs_S[:, None], NUM_ROWS, 1)),
        alpha=float(textbook.pvalue),
    )
    assert at_p.low == pytest.approx(0.5, abs=1e-6)


def test_with_one_rule_each_it_is_a_share_of_rows_with_students_bound():
    won_N = np.random.default_rng(1).permutation(np.repeat([1.0, 0.5, 0.0], [110, 20, 70]))
    ours, theirs = (
        arm(1 - won_N[None], is_deterministic=True),
        arm(np.full((1, NUM_ROWS), 0.5), is_deterministic=True),
    )
    textbook = stats.ttest_1samp(won_N, 0.0, alternative="greater").confidence_interval(0.95)

    found = chance(ours, theirs)

    assert found.probability == pytest.approx(0.6)  # (110 + 20 / 2) / 200
    assert found.low == pytest.approx(textbook.low)
    assert found.high == pytest.approx(1.2 - textbook.low)


def test_swapping_the_arms_mirrors_it_and_dependence_widens_it():
    rng = np.random.default_rng(2)
    ours, theirs = arm(rng.normal(size=(5, NUM_ROWS))), arm(rng.normal(0.5, 1, (6, NUM_ROWS)))

    forth, back = chance(ours, theirs), chance(theirs, ours)

    assert (back.probability, back.low, back.high) == pytest.approx(
        (1 - forth.probability, 1 - forth.high, 1 - forth.low)
    )
    assert forth.probability > 0.5
    slow = arm(ours.loss_SN + 2 * np.sin(np.arange(NUM_ROWS) / 10))
    assert chance(slow, theirs, block_length=20).low < chance(slow, theirs).low


def test_bounds_stay_chances_and_what_cannot_be_known_is_unknown():
    better = chance(arm(np.arange(10.0).reshape(5, 2).repeat(100, 1)), arm(np.full((5, 200), 8.5)))
    same = chance(arm(np.zeros((5, NUM_ROWS))), arm(np.ones((5, NUM_ROWS))))
    bad_SN = np.zeros((5, NUM_ROWS))
    bad_SN[1, 3] = math.nan

    assert 0 <= better.low <= better.probability <= better.high <= 1
    assert same.probability == 1.0
    assert math.isnan(same.low)
    assert all(map(math.isnan, chance(arm(bad_SN), arm(np.ones((5, NUM_ROWS))))))
