"""STAT-2: McNemar's test, seed by seed with Holm's correction."""

from dataclasses import replace
from math import comb

import numpy as np
import pytest
from scipy.stats import chi2
from statsmodels.stats.contingency_tables import mcnemar as oracle

from sluice.base.errors import ContractError
from sluice.evaluation.mcnemar import mcnemar
from tests.sluice.evaluation.loss_samples import table


def arm(*rows: list[int], subject: str = "candidate", deterministic: bool = False):
    return table(np.array(rows, float), subject, deterministic=deterministic)


def pair(only_ours: int, only_theirs: int, both: int = 3, neither: int = 20):
    ours = [1] * only_ours + [0] * only_theirs + [1] * both + [0] * neither
    theirs = [0] * only_ours + [1] * only_theirs + [1] * both + [0] * neither
    return arm(ours), arm(theirs, subject="reference", deterministic=True)


def test_few_discordant_rows_are_tested_exactly():
    (found,) = mcnemar(*pair(1, 5), alpha=0.05).tests

    assert (found.only_candidate_wrong, found.only_reference_wrong) == (1, 5)
    assert found.method == "exact"
    assert found.p_value == pytest.approx(2 * (comb(6, 0) + comb(6, 1)) / 2**6)
    assert found.reference_seed is None


def test_many_discordant_rows_are_tested_by_chi_square_with_continuity():
    (found,) = mcnemar(*pair(470, 560), alpha=0.05).tests

    assert found.method == "chi-square"
    assert found.p_value == pytest.approx(chi2.sf((560 - 470 - 1) ** 2 / 1030, df=1))


@pytest.mark.parametrize(("ours", "theirs"), [(3, 3), (0, 7), (40, 12), (400, 500), (900, 800)])
def test_p_values_are_those_of_statsmodels_on_the_whole_table(ours, theirs):
    (found,) = mcnemar(*pair(ours, theirs), alpha=0.05).tests

    whole = oracle([[20, ours], [theirs, 3]], exact=ours + theirs <= 1000)
    assert found.p_value == pytest.approx(min(1.0, whole.pvalue))


def test_both_methods_agree_at_the_limit():
    exact = mcnemar(*pair(460, 540), alpha=0.05).tests[0]
    beyond = mcnemar(*pair(460, 541), alpha=0.05).tests[0]

    assert (exact.method, beyond.method) == ("exact", "chi-square")
    assert exact.p_value == pytest.approx(beyond.p_value, abs=0.001)


def test_wrong_on_the_same_rows_is_no_difference():
    found = mcnemar(*pair(0, 0), alpha=0.05)

    assert found.tests[0].p_value == 1.0
    assert (found.num_better, found.num_worse) == (0, 0)


def test_each_seed_counts_once_and_holm_holds_them_together():
    reference = [1] * 12 + [0] * 28
    seeds = [
        [0] * 12 + [0] * 28,  # 12 rows better
        [0] * 7 + [1] * 5 + [0] * 28,  # 7 rows better: alone p = 0.016
        [1] * 12 + [0] * 28,  # the same
    ]
    found = mcnemar(arm(*seeds), arm(reference, subject="r", deterministic=True), alpha=0.03)

    raw = [2 / 2**12, 2 / 2**7, 1.0]
    assert [t.p_value for t in found.tests] == pytest.approx(raw)
    assert [t.adjusted_p for t in found.tests] == pytest.approx([3 * raw[0], 2 * raw[1], 1.0])
    assert (found.num_better, found.num_worse) == (1, 0)
    assert "of 3 networks, 1 have a significantly lower error rate" in str(found)


def test_swapping_the_arms_swaps_better_and_worse():
    ours, theirs = pair(2, 30)
    theirs_seeded = arm(theirs.loss_SN[0], subject="reference")

    there, back = (mcnemar(*p, alpha=0.05) for p in ((ours, theirs_seeded), (theirs_seeded, ours)))

    assert (there.num_better, there.num_worse) == (1, 0) == (back.num_worse, back.num_better)


def test_seeds_are_paired_in_order_and_from_the_first_again():
    candidate = arm([0, 0, 1], [0, 1, 0], [1, 0, 0])
    reference = arm([0, 0, 1], [1, 1, 0], subject="reference")

    found = mcnemar(candidate, reference, alpha=0.05).tests

    assert [(t.seed, t.reference_seed) for t in found] == [(0, 0), (1, 1), (2, 0)]
    counts = [(t.only_candidate_wrong, t.only_reference_wrong) for t in found]
    assert counts == [(0, 0), (0, 1), (1, 1)]


def test_rows_in_another_order_are_aligned_by_their_label():
    ours, theirs = pair(2, 9)
    turned = replace(theirs, label_N=theirs.label_N[::-1], loss_SN=theirs.loss_SN[:, ::-1])

    assert mcnemar(ours, turned, alpha=0.05) == mcnemar(ours, theirs, alpha=0.05)


def test_other_rows_are_refused():
    ours, theirs = pair(2, 9)
    fewer = arm(theirs.loss_SN[0, 1:], subject="reference", deterministic=True)

    with pytest.raises(ContractError, match=r"same \(fold, row\) pairs: 0 are only in reference"):
        mcnemar(ours, fewer, alpha=0.05)


@pytest.mark.parametrize("bad", [0.5, np.nan, np.inf, -1.0, 2.0])
def test_losses_other_than_0_and_1_are_refused(bad):
    ours, theirs = pair(2, 9)
    losses = ours.loss_SN.copy()
    losses[0, 4] = bad

    with pytest.raises(
        ContractError, match=r"losses of 0 and 1, got 1 other values in those of the candidate.*4"
    ):
        mcnemar(table(losses, "candidate"), theirs, alpha=0.05)


def test_equal_classifiers_differ_significantly_in_at_most_alpha_of_cases():
    """Five networks against one rule, equally good, their mistakes correlated by hard rows."""
    rng, claims = np.random.default_rng(7), 0
    for _ in range(200):
        hard = rng.random(300) * 0.4
        losses = (rng.random((6, 300)) < hard).astype(float)
        found = mcnemar(
            table(losses[:5], "candidate"),
            table(losses[5:], "reference", deterministic=True),
            alpha=0.05,
        )
        claims += found.num_better + found.num_worse > 0

    assert claims <= 19  # 99.9 % binomial bound of 5 % of 200
