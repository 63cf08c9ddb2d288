"""The promotion gate compares the losses of candidate and reference (STAT-1)."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from sluice.base.errors import ContractError, SettingsError
from sluice.evaluation.comparison import compare
from sluice.evaluation.losses import LossTable
from sluice.evaluation.settings import GateSettings
from tests.sluice.evaluation.loss_samples import (
    LABELS,
    ar1,
    center,
    make_losses,
    make_seed_effects,
    simulate_arms,
)

NUM_ROWS = 400


def run_gate(candidate, reference, *, horizon_rows=1, **settings):
    return compare(candidate, reference, GateSettings(**settings), horizon_rows=horizon_rows)


def make_arms(
    gain: float,
    *,
    seed_size: float = 1e-3,
    noise: float = 0.1,
    num_seeds: int = 5,
    num_rows: int = NUM_ROWS,
    num_folds: int = 1,
) -> tuple[LossTable, LossTable]:
    """Return a candidate with exactly this mean gain over a rule; rows are independent."""
    base_N = np.random.default_rng(1).exponential(size=num_rows) + 1
    noise_N = noise * center(np.random.default_rng(2).normal(size=num_rows))
    candidate_SN = base_N + noise_N - gain + make_seed_effects(num_seeds, seed_size)
    return (
        make_losses(candidate_SN, "candidate", num_folds=num_folds),
        make_losses(base_N[None], "rule", num_folds=num_folds, deterministic=True),
    )


def test_without_seed_variance_and_dependence_the_bound_is_that_of_the_paired_t_test():
    candidate, reference = make_arms(0.02, seed_size=1e-9)
    gain_N = reference.loss_SN[0] - candidate.loss_SN.mean(axis=0)
    textbook = stats.ttest_1samp(gain_N, 0.0, alternative="greater")

    verdict = run_gate(candidate, reference, horizon_rows=0)

    assert verdict.lower_bound == pytest.approx(textbook.confidence_interval(0.95).low)
    assert verdict.p_value == pytest.approx(textbook.pvalue, rel=1e-6)
    assert verdict.degrees_of_freedom == pytest.approx(NUM_ROWS - 1)
    assert verdict.effect_size == pytest.approx(gain_N.mean() / gain_N.std(ddof=1))


def test_with_seed_variance_only_the_bound_is_that_of_welchs_t_test():
    rng = np.random.default_rng(3)
    rows_N = 1e-7 * ar1(rng, 0.0, NUM_ROWS)
    candidate_S, reference_S = rng.normal(1.0, 0.1, 6), rng.normal(1.2, 0.3, 9)
    candidate = make_losses(candidate_S[:, None] + rows_N, "candidate")
    reference = make_losses(
        np.broadcast_to(reference_S[:, None], (9, NUM_ROWS)).copy(), "reference"
    )
    welch = stats.ttest_ind(reference_S, candidate_S, equal_var=False, alternative="greater")

    verdict = run_gate(candidate, reference)

    assert verdict.p_value == pytest.approx(welch.pvalue, rel=1e-4)
    assert verdict.lower_bound == pytest.approx(welch.confidence_interval(0.95).low, rel=1e-4)
    assert (verdict.num_seeds, verdict.num_reference_seeds) == (6, 9)


def test_variances_of_seeds_and_rows_are_added_with_satterthwaite_degrees_of_freedom():
    candidate, reference = make_arms(0.02, seed_size=0.02)
    gain_N = reference.loss_SN[0] - candidate.loss_SN.mean(axis=0)
    seeds, rows = 0.02**2 / 5, gain_N.var(ddof=1) / NUM_ROWS

    verdict = run_gate(candidate, reference, horizon_rows=0)

    assert verdict.seed_se == pytest.approx(math.sqrt(seeds))
    assert verdict.row_se == pytest.approx(math.sqrt(rows))
    assert verdict.standard_error == pytest.approx(math.sqrt(seeds + rows))
    freedom = (seeds + rows) ** 2 / (seeds**2 / 4 + rows**2 / (NUM_ROWS - 1))
    assert verdict.degrees_of_freedom == pytest.approx(freedom)


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_a_shift_between_folds_does_not_change_the_standard_error(shift):
    candidate, reference = make_arms(0.02, num_folds=4)
    shifted = make_losses(
        candidate.loss_SN + shift * (candidate.fold_N - 1.5), "candidate", num_folds=4
    )

    verdict = run_gate(shifted, reference)

    assert verdict.gain == pytest.approx(0.02)
    assert verdict.row_se == pytest.approx(run_gate(candidate, reference).row_se)


def test_the_bounds_determine_the_outcome():
    gains = (0.05, 0.006, 0.0, -0.006, -0.05)
    verdicts = [run_gate(*make_arms(gain), equivalence_margin_share=0.005) for gain in gains]

    # The margin is 0.01 and a bound is 0.008 from the gain: at +-0.006 one bound exceeds it.
    assert [v.outcome for v in verdicts] == [
        "PROMOTE",
        "INCONCLUSIVE",
        "EQUIVALENT",
        "INCONCLUSIVE",
        "REJECT",
    ]
    assert [v.passed for v in verdicts] == [True] + [False] * 4
    assert all(v.lower_bound < v.gain < v.upper_bound for v in verdicts)


def test_more_data_are_not_advised_for_a_candidate_that_is_worse():
    worse, near = (
        run_gate(*make_arms(-0.006), equivalence_margin_share=share) for share in (0.0001, 0.005)
    )

    assert worse.outcome == near.outcome == "INCONCLUSIVE"
    assert "would probably be rejected. Improve" in worse.remedy
    assert "would be sufficient" not in worse.remedy
    assert "would be sufficient" in near.remedy


def test_a_significant_gain_below_min_gain_is_rejected():
    verdict = run_gate(*make_arms(0.05), min_gain=0.2)

    assert verdict.outcome == "REJECT"
    assert verdict.lower_bound > 0
    assert "too small a gain" in verdict.reason


def test_the_lower_bound_decides_and_not_the_estimate():
    below = run_gate(*make_arms(0.0085), equivalence_margin_share=0.0)
    bound = below.gain - below.lower_bound

    above = run_gate(*make_arms(bound * 1.02), equivalence_margin_share=0.0)
    under = run_gate(*make_arms(bound * 0.98), equivalence_margin_share=0.0)

    assert (above.outcome, under.outcome) == ("PROMOTE", "INCONCLUSIVE")
    assert (above.p_value < 0.05, under.p_value < 0.05) == (True, False)


def test_stricter_alpha_never_raises_the_lower_bound():
    candidate, reference = make_arms(0.02)
    bounds = [run_gate(candidate, reference, alpha=a).lower_bound for a in (0.2, 0.1, 0.05, 0.01)]

    assert bounds == sorted(bounds, reverse=True)


def test_more_seeds_or_rows_never_raise_the_standard_error():
    by_seeds = [run_gate(*make_arms(0.0, seed_size=0.05, num_seeds=s)).seed_se for s in (5, 8, 20)]
    by_rows = [run_gate(*make_arms(0.0, num_rows=n)).row_se for n in (300, 1000, 4000)]

    assert by_seeds == sorted(by_seeds, reverse=True)
    assert by_rows == sorted(by_rows, reverse=True)


def test_dependent_rows_raise_the_standard_error():
    rng = np.random.default_rng(4)
    base_N = rng.exponential(size=1000) + 1
    reference = make_losses(base_N[None], "rule", num_folds=4, deterministic=True)
    errors = []
    for rho in (0.0, 0.5, 0.8):
        effect_N = 0.1 * ar1(np.random.default_rng(5), rho, 1000)
        candidate = make_losses(
            base_N + effect_N + make_seed_effects(5, 1e-3), "candidate", num_folds=4
        )
        errors.append(run_gate(candidate, reference).row_se)

    # True ratios are 1, 1.7, 3; rows taken as independent would give 1, 1, 1.
    assert errors[1] > 1.3 * errors[0]
    assert errors[2] > 2.0 * errors[0]


def test_swapping_the_arms_mirrors_the_bounds():
    candidate, reference = simulate_arms(np.random.default_rng(6), rho=0.5, gain=0.1)

    forward, backward = run_gate(candidate, reference), run_gate(reference, candidate)

    assert forward.outcome == "PROMOTE"
    assert backward.outcome == "REJECT"
    assert backward.gain == pytest.approx(-forward.gain)
    assert backward.lower_bound == pytest.approx(-forward.upper_bound)
    assert backward.p_value == pytest.approx(1 - forward.p_value)


def test_the_order_of_the_references_rows_does_not_matter():
    candidate, reference = simulate_arms(np.random.default_rng(6), rho=0.5, gain=0.1)
    order = np.random.default_rng(0).permutation(reference.num_rows)
    shuffled = LossTable(
        subject=reference.subject,
        window=reference.window,
        seeds=reference.seeds,
        fold_N=reference.fold_N[order],
        label_N=reference.label_N[order],
        loss_SN=reference.loss_SN[:, order],
    )

    assert run_gate(candidate, shuffled) == run_gate(candidate, reference)


def test_the_unit_of_the_losses_does_not_change_the_verdict():
    candidate, reference = simulate_arms(np.random.default_rng(6), rho=0.5, gain=0.05)
    in_thousands = [
        make_losses(arm.loss_SN * 1000, arm.subject, num_folds=4) for arm in (candidate, reference)
    ]

    small, large = run_gate(candidate, reference), run_gate(*in_thousands)

    assert large.outcome == small.outcome
    assert large.p_value == pytest.approx(small.p_value)
    assert large.lower_bound == pytest.approx(1000 * small.lower_bound)


def test_the_mean_of_fold_gains_weighted_by_rows_is_the_gain():
    verdict = run_gate(*simulate_arms(np.random.default_rng(6), rho=0.5, num_rows=1003))

    shares = [fold.num_rows for fold in verdict.folds]
    assert sum(shares) == 1003
    assert np.average([f.gain for f in verdict.folds], weights=shares) == pytest.approx(
        verdict.gain
    )
    assert all(fold.low < fold.gain < fold.high for fold in verdict.folds)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("arm", [0, 1])
def test_one_non_finite_loss_is_inconclusive_and_is_counted(loss, arm):
    pair = list(simulate_arms(np.random.default_rng(6), rho=0.0, gain=1.0))
    assert run_gate(*pair).outcome == "PROMOTE"
    loss_SN = pair[arm].loss_SN.copy()
    loss_SN[2, 17] = loss
    pair[arm] = make_losses(loss_SN, pair[arm].subject, num_folds=4)

    verdict = run_gate(*pair)

    assert verdict.outcome == "INCONCLUSIVE"
    assert not verdict.passed
    assert (verdict.diverged_seeds, verdict.diverged_reference_seeds)[arm] == (2,)
    assert "non-finite losses in 1 of 5 seeds (2)" in verdict.reason
    assert math.isnan(verdict.lower_bound)


@pytest.mark.parametrize("arm", [0, 1])
def test_non_finite_losses_never_promote_without_the_evidence_check(monkeypatch, arm):
    """The outcome for NaN is INCONCLUSIVE even without `find_missing_evidence` (STAT-1)."""
    pair = list(simulate_arms(np.random.default_rng(6), rho=0.0, gain=1.0))
    loss_SN = pair[arm].loss_SN.copy()
    loss_SN[2] = math.nan
    pair[arm] = make_losses(loss_SN, pair[arm].subject, num_folds=4)
    monkeypatch.setattr("sluice.evaluation.comparison.find_missing_evidence", lambda *_, **__: ())

    verdict = run_gate(*pair)

    assert verdict.outcome == "INCONCLUSIVE"
    assert math.isnan(verdict.gain)


@pytest.mark.parametrize("arm", [0, 1])
def test_four_seeds_are_too_few_and_five_are_sufficient(arm):
    pair = list(simulate_arms(np.random.default_rng(6), rho=0.0, gain=1.0))
    pair[arm] = make_losses(pair[arm].loss_SN[:4], pair[arm].subject, num_folds=4)

    verdict = run_gate(*pair)

    assert verdict.outcome == "INCONCLUSIVE"
    assert f"the {('candidate', 'reference')[arm]} has 4 seeds, required 5" in verdict.reason
    name = ("candidate", "reference")[arm]
    assert verdict.remedy == f"Train the {name} with 1 more seed."
    with pytest.raises(SettingsError, match="greater than or equal to 5"):
        run_gate(*pair, min_seeds=4)  # STAT-1: no setting allows fewer seeds


def test_copies_of_one_seed_count_as_one_seed():
    candidate, reference = simulate_arms(np.random.default_rng(6), rho=0.0, gain=1.0)
    copied = make_losses(np.repeat(candidate.loss_SN[:1], 5, axis=0), "candidate", num_folds=4)

    verdict = run_gate(copied, reference)

    assert verdict.outcome == "INCONCLUSIVE"
    assert "4 have exactly the losses of another" in verdict.reason


def test_a_rule_without_seeds_can_be_reference_but_not_candidate():
    candidate, rule = make_arms(0.05)

    assert run_gate(candidate, rule).outcome == "PROMOTE"
    backwards = run_gate(rule, candidate)
    assert backwards.outcome == "INCONCLUSIVE"
    assert "the candidate has 0 seeds" in backwards.reason


def test_too_few_rows_are_inconclusive():
    too_few = run_gate(*make_arms(0.5, num_rows=249))
    enough = run_gate(*make_arms(0.5, num_rows=250))

    assert (too_few.outcome, enough.outcome) == ("INCONCLUSIVE", "PROMOTE")
    assert "249 test rows, required 250" in too_few.reason
    assert too_few.remedy == "Score 1 more row."


def test_a_fold_shorter_than_two_blocks_is_inconclusive():
    verdict = run_gate(*make_arms(0.5, num_folds=8), horizon_rows=26)

    assert verdict.block_length == 51
    assert verdict.outcome == "INCONCLUSIVE"
    assert "the smallest fold has 50 test rows, required 102" in verdict.reason


def test_a_fold_of_one_independent_row_is_inconclusive():
    candidate, rule = make_arms(0.5, num_rows=251)
    fold_N = np.array([0] * 250 + [1])
    pair = (replace(candidate, fold_N=fold_N), replace(rule, fold_N=fold_N))

    verdict = run_gate(*pair, horizon_rows=0)

    assert verdict.outcome == "INCONCLUSIVE"
    assert "the smallest fold has 1 test row, required 2." in verdict.reason


def test_a_significant_gain_that_may_be_too_small_is_not_called_insignificant():
    candidate, reference = make_arms(0.5)
    plain = run_gate(candidate, reference)
    required = (plain.lower_bound + plain.upper_bound) / 2

    verdict = run_gate(candidate, reference, min_gain=required, equivalence_margin_share=0.0)

    assert verdict.outcome == "INCONCLUSIVE"
    assert verdict.reason.startswith("The gain may be too small: the gain is between")


@pytest.mark.parametrize("gain", [0.5, 0.0])
def test_a_constant_difference_is_inconclusive(gain):
    verdict = run_gate(*make_arms(gain, noise=0.0))

    assert verdict.outcome == "INCONCLUSIVE"
    assert "the same on every row" in verdict.reason


def test_a_comparison_of_a_model_with_itself_is_inconclusive():
    candidate, reference = simulate_arms(np.random.default_rng(6), rho=0.0, gain=1.0)
    same = make_losses(reference.loss_SN, candidate.subject, num_folds=4)

    verdict = run_gate(candidate, same)

    assert verdict.outcome == "INCONCLUSIVE"
    assert "the same model" in verdict.reason


def test_another_window_and_other_rows_are_rejected():
    candidate, reference = make_arms(0.05)
    elsewhere = make_losses(reference.loss_SN, "rule", deterministic=True, window="other")
    later = LossTable(
        subject="rule",
        window="window",
        seeds=(),
        fold_N=reference.fold_N,
        label_N=LABELS[1 : NUM_ROWS + 1],
        loss_SN=reference.loss_SN,
    )

    with pytest.raises(ContractError, match="on one window"):
        run_gate(candidate, elsewhere)
    with pytest.raises(ContractError, match="same \\(fold, row\\) pairs: 1 are only in"):
        run_gate(candidate, later)


def test_a_block_length_below_the_horizon_is_rejected():
    with pytest.raises(SettingsError, match="horizon of 5 rows, got block_length 4"):
        run_gate(*make_arms(0.05), block_length=4, horizon_rows=5)
    with pytest.raises(SettingsError, match="at least 0 rows, got -1"):
        run_gate(*make_arms(0.05), horizon_rows=-1)


def test_the_remedy_names_seeds_or_rows_as_missing():
    seeds = run_gate(*make_arms(0.018, seed_size=0.03), equivalence_margin_share=0.0)
    rows = run_gate(*make_arms(0.006), equivalence_margin_share=0.0)

    assert seeds.outcome == rows.outcome == "INCONCLUSIVE"
    assert "Use more seeds of the candidate" in seeds.remedy
    assert "Use more test rows" in rows.remedy


def test_the_same_evidence_gives_the_same_verdict():
    pair = simulate_arms(np.random.default_rng(6), rho=0.5)

    assert run_gate(*pair) == run_gate(*pair)
