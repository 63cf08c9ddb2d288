"""P-values and verdicts are adjusted for multiple comparisons (STAT-2)."""

import math

import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests

from sluice.base.errors import ContractError
from sluice.evaluation.comparison import compare
from sluice.evaluation.multiplicity import adjust_cohort, benjamini_hochberg, holm
from sluice.evaluation.settings import GateSettings
from sluice.verdicts.verdict import Verdict
from tests.sluice.evaluation.loss_samples import make_losses, simulate_arms

P_VALUES = np.random.default_rng(0).uniform(size=17) ** 3


@pytest.mark.parametrize(("adjust", "method"), [(holm, "holm"), (benjamini_hochberg, "fdr_bh")])
def test_adjusted_p_values_equal_those_of_statsmodels(adjust, method):
    expected = multipletests(P_VALUES, method=method)[1]

    assert adjust(P_VALUES.tolist()) == pytest.approx(expected.tolist())


@pytest.mark.parametrize("adjust", [holm, benjamini_hochberg])
def test_an_unknown_p_value_stays_unknown_and_counts_in_the_family(adjust):
    known, unknown = adjust([0.01, math.nan])

    assert math.isnan(unknown)
    assert known == 0.02


def make_verdict(name: str, gain: float) -> Verdict:
    candidate, reference = simulate_arms(np.random.default_rng(6), rho=0.0, gain=gain)
    renamed = make_losses(candidate.loss_SN, name, num_folds=4)
    return compare(renamed, reference, GateSettings(), horizon_rows=1)


def make_verdict_with_p(name: str, p_value: float) -> Verdict:
    return make_verdict(name, 1.0).model_copy(update={"p_value": p_value})


def test_a_promotion_remains_only_if_it_is_significant_in_the_whole_cohort():
    # Adjusted p-values by Holm: 0.001 * 3, 0.03 * 2 and 0.06 (at least the one before).
    cohort = [
        make_verdict_with_p("a", 0.03),
        make_verdict_with_p("b", 0.001),
        make_verdict_with_p("c", 0.04),
    ]

    adjusted = adjust_cohort(cohort, alpha=0.05)

    assert [v.outcome for v in adjusted] == ["INCONCLUSIVE", "PROMOTE", "INCONCLUSIVE"]
    assert adjusted[1] == cohort[1]
    assert "p 0.03, adjusted p 0.06 (Holm), required at most 0.05" in adjusted[0].reason


def test_a_cohort_of_one_is_unchanged_and_a_rejection_stays_a_rejection():
    promoted, rejected = make_verdict("a", 1.0), make_verdict("b", -1.0)

    assert adjust_cohort([promoted], alpha=0.05) == (promoted,)
    assert adjust_cohort([promoted, rejected], alpha=0.05)[1] == rejected


def test_a_promotion_with_an_unknown_p_value_is_inconclusive():
    (adjusted,) = adjust_cohort([make_verdict_with_p("a", math.nan)], alpha=0.05)

    assert adjusted.outcome == "INCONCLUSIVE"


def test_a_cohort_of_several_windows_or_one_repeated_candidate_is_rejected():
    other_window = make_verdict("b", 1.0).model_copy(update={"window": "other"})

    with pytest.raises(ContractError, match="on 2 windows"):
        adjust_cohort([make_verdict("a", 1.0), other_window], alpha=0.05)
    with pytest.raises(ContractError, match=r"for 1 candidate\."):
        adjust_cohort([make_verdict("a", 1.0)] * 2, alpha=0.05)
