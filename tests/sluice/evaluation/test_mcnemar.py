"""McNemar's test is run for each seed with Holm's correction (STAT-2)."""

from dataclasses import replace
from math import comb

import numpy as np
import pytest
from scipy.stats import chi2
from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar

from sluice.base.errors import ContractError
from sluice.evaluation.mcnemar import mcnemar
from tests.sluice.evaluation.loss_samples import make_losses


def make_arm(*rows: list[int], subject: str = "candidate", deterministic: bool = False):
    return make_losses(np.array(rows, float), subject, deterministic=deterministic)


def make_pair(only_candidate: int, only_reference: int, both: int = 3, neither: int = 20):
    candidate = [1] * only_candidate + [0] * only_reference + [1] * both + [0] * neither
    reference = [0] * only_candidate + [1] * only_reference + [1] * both + [0] * neither
    return make_arm(candidate), make_arm(reference, subject="reference", deterministic=True)


def test_few_discordant_rows_are_tested_exactly():
    (result,) = mcnemar(*make_pair(1, 5), alpha=0.05).tests

    assert (result.only_candidate_wrong, result.only_reference_wrong) == (1, 5)
    assert result.method == "exact"
    assert result.p_value == pytest.approx(2 * (comb(6, 0) + comb(6, 1)) / 2**6)
    assert result.reference_seed is None


def test_many_discordant_rows_are_tested_by_chi_square_with_continuity():
    (result,) = mcnemar(*make_pair(470, 560), alpha=0.05).tests

    assert result.method == "chi-square"
    assert result.p_value == pytest.approx(chi2.sf((560 - 470 - 1) ** 2 / 1030, df=1))


@pytest.mark.parametrize(
    ("only_candidate", "only_reference"), [(3, 3), (0, 7), (40, 12), (400, 500), (900, 800)]
)
def test_p_values_equal_those_of_statsmodels(only_candidate, only_reference):
    (result,) = mcnemar(*make_pair(only_candidate, only_reference), alpha=0.05).tests

    expected = statsmodels_mcnemar(
        [[20, only_candidate], [only_reference, 3]], exact=only_candidate + only_reference <= 1000
    )
    assert result.p_value == pytest.approx(min(1.0, expected.pvalue))


def test_both_methods_agree_at_the_limit():
    exact = mcnemar(*make_pair(460, 540), alpha=0.05).tests[0]
    chi_square = mcnemar(*make_pair(460, 541), alpha=0.05).tests[0]

    assert (exact.method, chi_square.method) == ("exact", "chi-square")
    assert exact.p_value == pytest.approx(chi_square.p_value, abs=0.001)


def test_errors_on_the_same_rows_are_no_difference():
    result = mcnemar(*make_pair(0, 0), alpha=0.05)

    assert result.tests[0].p_value == 1.0
    assert (result.num_better, result.num_worse) == (0, 0)


def test_p_values_of_seeds_are_adjusted_by_holm():
    reference = [1] * 12 + [0] * 28
    seeds = [
        [0] * 12 + [0] * 28,  # 12 rows better
        [0] * 7 + [1] * 5 + [0] * 28,  # 7 rows better: alone p = 0.016
        [1] * 12 + [0] * 28,  # the same
    ]
    result = mcnemar(
        make_arm(*seeds), make_arm(reference, subject="r", deterministic=True), alpha=0.03
    )

    raw = [2 / 2**12, 2 / 2**7, 1.0]
    assert [t.p_value for t in result.tests] == pytest.approx(raw)
    assert [t.adjusted_p for t in result.tests] == pytest.approx([3 * raw[0], 2 * raw[1], 1.0])
    assert (result.num_better, result.num_worse) == (1, 0)
    assert "of 3 networks, 1 have a significantly lower error rate" in str(result)


def test_swapping_the_arms_swaps_better_and_worse():
    candidate, reference = make_pair(2, 30)
    seeded_reference = make_arm(reference.loss_SN[0], subject="reference")

    forward, backward = (
        mcnemar(*p, alpha=0.05)
        for p in ((candidate, seeded_reference), (seeded_reference, candidate))
    )

    assert (
        (forward.num_better, forward.num_worse)
        == (1, 0)
        == (backward.num_worse, backward.num_better)
    )


def test_seeds_are_paired_in_order_and_reference_seeds_repeat():
    candidate = make_arm([0, 0, 1], [0, 1, 0], [1, 0, 0])
    reference = make_arm([0, 0, 1], [1, 1, 0], subject="reference")

    result = mcnemar(candidate, reference, alpha=0.05).tests

    assert [(t.seed, t.reference_seed) for t in result] == [(0, 0), (1, 1), (2, 0)]
    counts = [(t.only_candidate_wrong, t.only_reference_wrong) for t in result]
    assert counts == [(0, 0), (0, 1), (1, 1)]


def test_rows_in_another_order_are_aligned_by_their_label():
    candidate, reference = make_pair(2, 9)
    reversed_reference = replace(
        reference, label_N=reference.label_N[::-1], loss_SN=reference.loss_SN[:, ::-1]
    )

    assert mcnemar(candidate, reversed_reference, alpha=0.05) == mcnemar(
        candidate, reference, alpha=0.05
    )


def test_other_rows_are_rejected():
    candidate, reference = make_pair(2, 9)
    fewer = make_arm(reference.loss_SN[0, 1:], subject="reference", deterministic=True)

    with pytest.raises(ContractError, match=r"same \(fold, row\) pairs: 0 are only in reference"):
        mcnemar(candidate, fewer, alpha=0.05)


@pytest.mark.parametrize("loss", [0.5, np.nan, np.inf, -1.0, 2.0])
def test_losses_other_than_0_and_1_are_rejected(loss):
    candidate, reference = make_pair(2, 9)
    losses = candidate.loss_SN.copy()
    losses[0, 4] = loss

    with pytest.raises(
        ContractError, match=r"losses of 0 and 1, got 1 other values in those of the candidate.*4"
    ):
        mcnemar(make_losses(losses, "candidate"), reference, alpha=0.05)


def test_equal_classifiers_differ_significantly_in_at_most_alpha_of_cases():
    """Five networks and a rule with equal error rates; hard rows correlate their errors."""
    rng, false_claims = np.random.default_rng(7), 0
    for _ in range(200):
        hard = rng.random(300) * 0.4
        losses = (rng.random((6, 300)) < hard).astype(float)
        result = mcnemar(
            make_losses(losses[:5], "candidate"),
            make_losses(losses[5:], "reference", deterministic=True),
            alpha=0.05,
        )
        false_claims += result.num_better + result.num_worse > 0

    assert false_claims <= 19  # 99.9 % binomial bound of 5 % of 200
