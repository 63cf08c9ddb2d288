"""Rows of one cluster count as one observation of the promotion gate (STAT-1)."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from sluice.base.errors import ContractError
from sluice.evaluation.clusters import aggregate_clusters
from sluice.evaluation.comparison import compare
from sluice.evaluation.losses import LossTable
from sluice.evaluation.secondary_tests import SecondaryTestSettings, run_secondary_tests
from sluice.evaluation.settings import GateSettings
from tests.sluice.evaluation.loss_samples import make_losses, make_seed_effects

SETTINGS = GateSettings(min_rows=30, equivalence_margin_share=0.0)


def add_clusters(losses: LossTable, sizes) -> LossTable:
    names = np.repeat([f"q{index:04d}" for index in range(len(sizes))], sizes)
    return replace(losses, cluster_N=names.astype(np.str_))


def make_arms(rng, sizes, *, gain=0.0, cluster_sd=1.0, num_seeds=5):
    """Return a candidate and a rule; the rows of a cluster share an effect on the gain."""
    cluster_effect_N = np.repeat(cluster_sd * rng.normal(size=len(sizes)), sizes)
    row_N = cluster_effect_N - gain + 0.1 * rng.normal(size=cluster_effect_N.size)
    losses = row_N + make_seed_effects(num_seeds, 0.01) + 10
    rule = np.full((1, cluster_effect_N.size), 10.0)
    return (
        add_clusters(make_losses(losses, "candidate"), sizes),
        add_clusters(make_losses(rule, "rule", deterministic=True), sizes),
    )


def run_gate(candidate, reference, *, horizon_rows=0):
    return compare(candidate, reference, SETTINGS, horizon_rows=horizon_rows)


def test_equal_clusters_give_the_t_test_of_their_means():
    candidate, rule = make_arms(np.random.default_rng(1), [8] * 60)

    verdict = run_gate(candidate, rule)

    means_C = (rule.loss_SN - candidate.loss_SN).mean(axis=0).reshape(60, 8).mean(axis=1)
    expected = stats.ttest_1samp(means_C, 0.0)
    assert verdict.gain == pytest.approx(means_C.mean())
    assert verdict.row_se == pytest.approx(stats.sem(means_C), rel=0.02)
    assert verdict.gain / verdict.row_se == pytest.approx(expected.statistic, rel=0.02)
    assert (verdict.num_rows, verdict.num_clusters) == (480, 60)
    assert verdict.rows_summary == "480 in 60 clusters, in blocks of 1 cluster"


def test_unequal_clusters_do_not_change_the_mean_gain_over_rows():
    rng = np.random.default_rng(2)
    sizes = rng.integers(1, 12, 80)
    candidate, rule = make_arms(rng, sizes, gain=0.3)

    verdict = run_gate(candidate, rule)

    assert verdict.gain == pytest.approx((rule.loss_SN - candidate.loss_SN).mean())
    assert verdict.folds[0].gain == pytest.approx(verdict.gain)
    assert verdict.folds[0].num_rows == sizes.sum()


def test_clusters_of_one_row_give_the_verdict_without_clusters():
    candidate, rule = make_arms(np.random.default_rng(3), [1] * 200)
    unclustered = [replace(losses, cluster_N=None) for losses in (candidate, rule)]

    verdict, expected = (
        run_gate(candidate, rule, horizon_rows=1),
        run_gate(*unclustered, horizon_rows=1),
    )

    assert verdict.remedy == expected.remedy.replace("test rows", "clusters")
    update = {"num_clusters": None, "remedy": expected.remedy}
    assert verdict.model_copy(update=update) == expected


@pytest.mark.exhaustive
@pytest.mark.slow
def test_clustered_rows_do_not_raise_the_rate_of_false_promotions():
    """A t-test that treats the rows as independent promotes falsely in a third of cases."""
    rng = np.random.default_rng(4)
    gate_promotions = naive_promotions = 0
    for _ in range(300):
        candidate, rule = make_arms(rng, rng.integers(4, 9, 60))
        gate_promotions += run_gate(candidate, rule).passed
        gain_N = (rule.loss_SN - candidate.loss_SN).mean(axis=0)
        naive_promotions += stats.ttest_1samp(gain_N, 0.0, alternative="greater").pvalue < 0.05

    assert 3 <= gate_promotions <= 29  # 99.9 % band of 5 %
    assert naive_promotions > 60


def test_too_few_clusters_are_inconclusive_even_with_many_rows():
    verdict = run_gate(*make_arms(np.random.default_rng(5), [100] * 12, gain=5.0))

    assert verdict.outcome == "INCONCLUSIVE"
    assert "the window has 12 clusters, required 30" in verdict.reason


def test_secondary_tests_use_clusters():
    candidate, rule = make_arms(np.random.default_rng(6), [20] * 50, gain=0.2)
    verdict = run_gate(candidate, rule)

    secondary = run_secondary_tests(
        verdict, candidate, rule, SecondaryTestSettings(), horizon_rows=0
    )

    assert secondary.percentile_low == pytest.approx(
        verdict.lower_bound, abs=verdict.standard_error
    )


def test_clusters_are_read_from_a_frame_in_any_row_order():
    candidate, _ = make_arms(np.random.default_rng(7), [3, 1, 5, 2])
    shuffled = candidate.to_frame().sample(frac=1, random_state=1)

    loaded = LossTable.from_frame(shuffled, subject="candidate", window="window")

    assert loaded.cluster_N.tolist() == candidate.cluster_N.tolist()
    assert np.array_equal(aggregate_clusters(loaded).loss_SN, aggregate_clusters(candidate).loss_SN)
    assert "cluster" not in replace(candidate, cluster_N=None).to_frame().columns


def test_invalid_clusters_are_rejected():
    candidate, rule = make_arms(np.random.default_rng(8), [10] * 20)
    other_clusters = replace(rule, cluster_N=np.roll(rule.cluster_N, 5))
    frame = candidate.to_frame()

    with pytest.raises(ContractError, match="have the same clusters"):
        run_gate(candidate, other_clusters)
    with pytest.raises(ContractError, match="have the same clusters"):
        run_gate(candidate, replace(rule, cluster_N=None))
    folds = replace(candidate, fold_N=(np.arange(200) >= 105).astype(np.int64))
    with pytest.raises(
        ContractError, match=r"one fold, got 1 cluster in several folds, first 'q0010'"
    ):
        run_gate(folds, replace(rule, fold_N=folds.fold_N))
    with pytest.raises(ContractError, match="row 3 is empty"):
        LossTable.from_frame(frame.assign(cluster=frame["cluster"].where(frame.index != 3)),
                             subject="c")  # fmt: skip
    frame.loc[0, "cluster"] = "elsewhere"
    with pytest.raises(ContractError, match="for all seeds; fold 0, row 000000"):
        LossTable.from_frame(frame, subject="c")


def test_the_advised_sample_size_is_a_number_of_clusters():
    candidate, rule = make_arms(np.random.default_rng(1), [8] * 60, gain=0.1)

    verdict = run_gate(candidate, rule)

    assert verdict.outcome == "INCONCLUSIVE"
    assert "more clusters: about" in verdict.remedy
