"""STAT-1: what is shown beside a verdict, and that it decides nothing."""

import math

import numpy as np
import pytest

from sluice.base.errors import ContractError
from sluice.evaluation.comparison import compare
from sluice.evaluation.secondary_tests import SecondaryTestSettings, run_secondary_tests
from sluice.evaluation.settings import GateSettings
from tests.sluice.evaluation.loss_samples import table, two_recipes

PAIR = two_recipes(np.random.default_rng(6), rho=0.5, gain=0.05)
VERDICT = compare(*PAIR, GateSettings(), horizon_rows=1)


def shown(**settings):
    return run_secondary_tests(VERDICT, *PAIR, SecondaryTestSettings(**settings), horizon_rows=1)


def test_all_secondary_tests_use_the_same_gain():
    found = shown()

    # The percentile interval is too narrow with 5 seeds, by sqrt(4 / 5) and Student's quantile.
    assert VERDICT.lower_bound < found.percentile_low < VERDICT.gain < found.percentile_high
    assert found.percentile_high < VERDICT.upper_bound
    assert found.sign_flip_p == pytest.approx(VERDICT.p_value, abs=0.05)
    assert found.improvement_low < found.improvement < found.improvement_high
    assert found.improvement > 0.5
    # Rows alone, taken as independent at a horizon of 1: too sure of itself.
    assert found.diebold_mariano_p < VERDICT.p_value


def test_cohens_d_over_seeds_has_the_expected_value():
    ours_S, theirs_S = (arm.loss_SN.mean(axis=1) for arm in PAIR)
    pooled = math.sqrt((ours_S.var(ddof=1) + theirs_S.var(ddof=1)) / 2)

    assert shown().seed_effect_size == pytest.approx((theirs_S.mean() - ours_S.mean()) / pooled)


def test_equal_seeds_give_equal_resamples():
    assert shown(seed=1) == shown(seed=1)
    assert shown(seed=1).percentile_low != shown(seed=2).percentile_low
    assert shown(seed=1).sign_flip_p != shown(seed=2).sign_flip_p


def test_a_non_finite_loss_makes_every_number_nan():
    loss_SN = PAIR[0].loss_SN.copy()
    loss_SN[0, 0] = math.inf
    bad = table(loss_SN, "candidate", num_folds=4)
    verdict = compare(bad, PAIR[1], GateSettings(), horizon_rows=1)

    found = run_secondary_tests(verdict, bad, PAIR[1], SecondaryTestSettings(), horizon_rows=1)

    numbers = found.model_dump(exclude={"resamples", "seed"})
    assert all(map(math.isnan, numbers.values()))


def test_losses_of_another_comparison_are_rejected():
    with pytest.raises(ContractError, match="refers to another candidate"):
        run_secondary_tests(VERDICT, *reversed(PAIR), SecondaryTestSettings(), horizon_rows=1)
