"""STAT-2: several claims at once."""

import math

import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests

from sluice.base.errors import ContractError
from sluice.evaluation.comparison import compare
from sluice.evaluation.multiplicity import adjust_cohort, benjamini_hochberg, holm
from sluice.evaluation.settings import GateSettings
from sluice.verdicts.verdict import Verdict
from tests.sluice.evaluation.loss_samples import table, two_recipes

P_VALUES = np.random.default_rng(0).uniform(size=17) ** 3


@pytest.mark.parametrize(("own", "method"), [(holm, "holm"), (benjamini_hochberg, "fdr_bh")])
def test_adjusted_p_values_are_those_of_statsmodels(own, method):
    expected = multipletests(P_VALUES, method=method)[1]

    assert own(P_VALUES.tolist()) == pytest.approx(expected.tolist())


@pytest.mark.parametrize("adjust", [holm, benjamini_hochberg])
def test_a_p_value_that_is_unknown_stays_unknown_and_counts_in_the_family(adjust):
    known, unknown = adjust([0.01, math.nan])

    assert math.isnan(unknown)
    assert known == 0.02


def verdict(name: str, gain: float) -> Verdict:
    candidate, reference = two_recipes(np.random.default_rng(6), rho=0.0, gain=gain)
    own = table(candidate.loss_SN, name, num_folds=4)
    return compare(own, reference, GateSettings(), horizon_rows=1)


def with_p(name: str, p_value: float) -> Verdict:
    return verdict(name, 1.0).model_copy(update={"p_value": p_value})


def test_a_promotion_remains_only_if_it_is_significant_in_the_whole_cohort():
    # Holm by hand: 0.001 * 3 and 0.03 * 2 and 0.04.
    cohort = [with_p("a", 0.03), with_p("b", 0.001), with_p("c", 0.04)]

    held = adjust_cohort(cohort, alpha=0.05)

    assert [v.outcome for v in held] == ["INCONCLUSIVE", "PROMOTE", "INCONCLUSIVE"]
    assert held[1] == cohort[1]
    assert "p 0.03, adjusted p 0.06 (Holm), required at most 0.05" in held[0].reason


def test_a_cohort_of_one_changes_nothing_and_never_makes_a_promotion():
    good, bad = verdict("a", 1.0), verdict("b", -1.0)

    assert adjust_cohort([good], alpha=0.05) == (good,)
    assert adjust_cohort([good, bad], alpha=0.05)[1] == bad


def test_an_unknown_p_value_never_holds():
    (held,) = adjust_cohort([with_p("a", math.nan)], alpha=0.05)

    assert held.outcome == "INCONCLUSIVE"


def test_a_cohort_is_several_candidates_on_one_window():
    elsewhere = verdict("b", 1.0).model_copy(update={"window": "other"})

    with pytest.raises(ContractError, match="on 2 windows"):
        adjust_cohort([verdict("a", 1.0), elsewhere], alpha=0.05)
    with pytest.raises(ContractError, match=r"for 1 candidate\."):
        adjust_cohort([verdict("a", 1.0)] * 2, alpha=0.05)
