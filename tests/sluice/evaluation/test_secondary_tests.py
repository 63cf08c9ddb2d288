"""Secondary tests of a verdict have the expected values (STAT-1)."""

import math

import numpy as np
import pytest

from sluice.base.errors import ContractError
from sluice.evaluation.comparison import compare
from sluice.evaluation.secondary_tests import SecondaryTestSettings, run_secondary_tests
from sluice.evaluation.settings import GateSettings
from tests.sluice.evaluation.loss_samples import make_losses, simulate_arms

PAIR = simulate_arms(np.random.default_rng(6), rho=0.5, gain=0.05)
VERDICT = compare(*PAIR, GateSettings(), horizon_rows=1)


def run_tests(**settings):
    return run_secondary_tests(VERDICT, *PAIR, SecondaryTestSettings(**settings), horizon_rows=1)


def test_secondary_tests_agree_with_the_verdict():
    secondary = run_tests()

    # The percentile interval is too narrow with 5 seeds, by sqrt(4 / 5) and Student's quantile.
    assert VERDICT.lower_bound < secondary.percentile_low < VERDICT.gain < secondary.percentile_high
    assert secondary.percentile_high < VERDICT.upper_bound
    assert secondary.sign_flip_p == pytest.approx(VERDICT.p_value, abs=0.05)
    assert secondary.improvement_low < secondary.improvement < secondary.improvement_high
    assert secondary.improvement > 0.5
    # Without the variance of seeds, and with rows taken as independent, p is too small.
    assert secondary.diebold_mariano_p < VERDICT.p_value


def test_cohens_d_over_seeds_has_the_expected_value():
    candidate_S, reference_S = (arm.loss_SN.mean(axis=1) for arm in PAIR)
    pooled = math.sqrt((candidate_S.var(ddof=1) + reference_S.var(ddof=1)) / 2)

    assert run_tests().seed_effect_size == pytest.approx(
        (reference_S.mean() - candidate_S.mean()) / pooled
    )


def test_the_seed_determines_the_resamples():
    assert run_tests(seed=1) == run_tests(seed=1)
    assert run_tests(seed=1).percentile_low != run_tests(seed=2).percentile_low
    assert run_tests(seed=1).sign_flip_p != run_tests(seed=2).sign_flip_p


def test_a_non_finite_loss_makes_every_number_nan():
    loss_SN = PAIR[0].loss_SN.copy()
    loss_SN[0, 0] = math.inf
    candidate = make_losses(loss_SN, "candidate", num_folds=4)
    verdict = compare(candidate, PAIR[1], GateSettings(), horizon_rows=1)

    secondary = run_secondary_tests(
        verdict, candidate, PAIR[1], SecondaryTestSettings(), horizon_rows=1
    )

    numbers = secondary.model_dump(exclude={"resamples", "seed"})
    assert all(map(math.isnan, numbers.values()))


def test_losses_of_another_comparison_are_rejected():
    with pytest.raises(ContractError, match="refers to another candidate"):
        run_secondary_tests(VERDICT, *reversed(PAIR), SecondaryTestSettings(), horizon_rows=1)
