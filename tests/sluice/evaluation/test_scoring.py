"""Candidates, versions and baselines are scored on the test rows of their folds."""

import math

import numpy as np
import pytest
import torch

from sluice.base.errors import ContractError, OutOfMemory
from sluice.data.folds import Fold, RowRange
from sluice.evaluation.outputs import predict
from sluice.evaluation.scoring import (
    score_baseline,
    score_candidate,
    score_members,
    window_digest,
)
from sluice.evaluation.simple_rules import Baseline, BaselineSettings, choose_baseline
from sluice.training.members import Member
from tests.sluice.evaluation.scored_workload import FOLDS, Counting, Shifted, make_member

WORKLOAD = Counting()
FRAME = WORKLOAD.compute_features(WORKLOAD.load_rows())
MEMBERS = [make_member(seed, fold) for seed in (7, 3) for fold in (1, 0)]


def load(member: Member) -> Shifted:
    return Shifted(member.seed + member.fold_id)


def score(members, **changes):
    arguments = {"subject": "candidate"} | changes
    return score_candidate(WORKLOAD, FRAME, FOLDS, members, load, **arguments).by_seed


def test_each_member_is_scored_on_the_test_rows_of_its_fold():
    losses = score(MEMBERS).losses

    assert losses.seeds == (3, 7)
    assert losses.subject == "candidate"
    assert losses.fold_N.tolist() == [0] * 8 + [1] * 16
    assert losses.label_N[[0, -1]].tolist() == ["2020-01-17T00:00:00", "2020-02-09T00:00:00"]
    assert losses.loss_SN.dtype == np.float64
    assert losses.loss_SN[0].tolist() == [9.0] * 8 + [16.0] * 16
    assert losses.loss_SN[1].tolist() == [49.0] * 8 + [64.0] * 16


def test_metrics_are_averaged_over_folds_by_their_rows():
    scores = score(MEMBERS)

    by_seed = [seed["loss"] for seed in scores.metric_table.by_seed]
    assert by_seed == pytest.approx([(8 * 9 + 16 * 16) / 24, (8 * 49 + 16 * 64) / 24])
    assert scores.metrics["loss"] == pytest.approx(scores.losses.loss_SN.mean())
    assert scores.metrics["first_row"] == pytest.approx((8 * 16 + 16 * 24) / 24)


def test_the_ensemble_is_scored_by_its_mean_output_without_seeds():
    scores = score_candidate(WORKLOAD, FRAME, FOLDS, MEMBERS, load, subject="candidate")
    losses = scores.deployed.losses

    assert losses.is_deterministic
    assert losses.window == score(MEMBERS).losses.window
    # The errors of the seeds are 3 and 7 on fold 0 and 4 and 8 on fold 1; their means 5 and 6.
    assert losses.loss_SN.tolist() == [[25.0] * 8 + [36.0] * 16]
    assert scores.deployed.metrics["loss"] == pytest.approx((8 * 25 + 16 * 36) / 24)


def test_the_baseline_has_no_seeds_and_the_same_window():
    means = {fold.fold_id: WORKLOAD.baseline(FRAME, fold) for fold in FOLDS}
    rule = Baseline(name="train mean", outputs=means, losses={})
    scores = score_baseline(WORKLOAD, FRAME, FOLDS, rule, subject="baseline")

    assert scores.losses.is_deterministic
    assert scores.losses.window == score(MEMBERS).losses.window
    # The mean of train targets 0..9 is 4.5; the first test target is 16.
    assert scores.losses.loss_SN[0, 0] == pytest.approx((16 - 4.5) ** 2)


@pytest.mark.parametrize(
    ("members", "cause"),
    [
        (MEMBERS[1:], r"missing \(seed, fold\) \[\(7, 1\)\]"),
        ([*MEMBERS, make_member(7, 5)], r"unexpected \[\(7, 5\)\]"),
        ([*MEMBERS, make_member(7, 0)], "repeated 1"),
        ([], "At least one member"),
    ],
)
def test_members_that_do_not_cover_the_folds_are_rejected(members, cause):
    with pytest.raises(ContractError, match=cause):
        score(members)


def test_a_diverged_member_is_scored_and_not_omitted():
    def load_broken(member: Member) -> Shifted:
        return Shifted(math.nan if member.seed == 7 else 1.0)

    losses = score_candidate(
        WORKLOAD, FRAME, FOLDS, MEMBERS, load_broken, subject="c"
    ).by_seed.losses

    assert losses.diverged_seeds == (7,)


def test_predictions_are_made_in_eval_mode_and_the_mode_is_restored():
    model = Shifted(1.0).train()
    x = torch.arange(9000, dtype=torch.float32)[:, None, None]

    output = predict(model, x)

    assert torch.equal(output, x[:, -1] + 1)
    assert model.training
    assert not output.requires_grad


def test_predictions_of_another_shape_are_rejected():
    class Flat(Shifted):
        def forward(self, x):
            return super().forward(x).squeeze(1)

    with pytest.raises(
        ContractError, match=r"must have shape \(8, 1\), got \(8,\) from seed 3, fold 0"
    ):
        score_candidate(WORKLOAD, FRAME, FOLDS, MEMBERS, lambda _: Flat(0.0), subject="c")


def test_losses_that_are_not_per_example_are_rejected():
    class Averaged(Counting):
        def losses(self, output, y):
            return (output - y).square().mean()

    with pytest.raises(ContractError, match=r"shape \(8,\), one per example, got \(\)"):
        score_candidate(Averaged(), FRAME, FOLDS, MEMBERS, load, subject="c")


def test_the_window_changes_with_the_data_and_with_the_test_rows():
    other_frame = FRAME.assign(y=FRAME["y"] + 1)
    shorter = Fold(
        fold_id=1, train=FOLDS[1].train, val=FOLDS[1].val, test=RowRange(start=24, stop=39)
    )
    digests = {
        window_digest(FRAME, FOLDS),
        window_digest(other_frame, FOLDS),
        window_digest(FRAME, (FOLDS[0], shorter)),
    }

    assert len(digests) == 3


def test_production_is_scored_with_the_latest_member_that_has_not_seen_the_rows():
    members = [
        make_member(seed, fold, through=through)
        for seed in (3, 7)
        for fold, through in ((0, "2020-01-05"), (1, "2020-01-20"), (2, "2020-02-01"))
    ]

    scores = score_members(WORKLOAD, FRAME, FOLDS, members, load, subject="production")
    losses = scores.by_seed.losses

    # Fold 0's test begins on 2020-01-17 and fold 1's on 2020-01-25.
    assert losses.loss_SN[0].tolist() == [9.0] * 8 + [16.0] * 16
    assert losses.window == window_digest(FRAME, FOLDS)


def test_production_that_was_trained_on_the_rows_is_rejected():
    members = [make_member(3, 0, through="2020-01-17"), make_member(3, 1, through="2020-01-30")]

    with pytest.raises(ContractError, match="Seed 3 needs a member whose training ends more"):
        score_members(WORKLOAD, FRAME, FOLDS, members, load, subject="production")


class ThresholdClassifier(Counting):
    """Workload that counts an error above 9 as a mistake."""

    def mistakes(self, output, y):
        return ((output - y).abs() > 9).flatten().float()


def test_mistakes_of_a_classifier_have_the_rows_of_its_losses():
    scores = score_candidate(
        ThresholdClassifier(), FRAME, FOLDS, MEMBERS, load, subject="candidate"
    ).by_seed

    assert scores.mistakes is not None
    assert scores.mistakes.label_N.tolist() == scores.losses.label_N.tolist()
    assert scores.mistakes.seeds == scores.losses.seeds
    # The errors of seed 3 are 3 and 4, those of seed 7 are 7 and 8.
    assert scores.mistakes.loss_SN.sum() == 0
    distant_members = [make_member(9, 0), make_member(9, 1)]
    again = score_candidate(
        ThresholdClassifier(), FRAME, FOLDS, distant_members, load, subject="candidate"
    ).by_seed.mistakes
    assert again is not None
    assert again.loss_SN.tolist() == [[0.0] * 8 + [1.0] * 16]


def test_a_regression_workload_has_no_mistakes():
    assert score(MEMBERS).mistakes is None


def test_mistakes_that_are_not_per_example_are_rejected():
    class Averaged(Counting):
        def mistakes(self, output, y):
            return (output - y).mean()

    with pytest.raises(
        ContractError, match=r"mistakes must have shape \(8,\), one per example, got \(\)"
    ):
        score_candidate(Averaged(), FRAME, FOLDS, MEMBERS, load, subject="candidate")


class WeekClusters(Counting):
    """Workload whose rows of one week are a cluster."""

    cluster_column = "week"

    def compute_features(self, raw):
        frame = super().compute_features(raw)
        return frame.assign(week=[f"{day.isocalendar().week:02d}" for day in frame.index])


def test_loss_tables_contain_the_clusters_of_the_workload():
    frame = WeekClusters().compute_features(WORKLOAD.load_rows())

    scores = score_candidate(WeekClusters(), frame, FOLDS, MEMBERS, load, subject="candidate")
    rule = choose_baseline(WeekClusters(), frame, FOLDS, BaselineSettings())
    rule_scores = score_baseline(WeekClusters(), frame, FOLDS, rule, subject="baseline")

    weeks = scores.by_seed.losses.cluster_N
    assert weeks.tolist() == [
        f"{np.datetime64(day).astype(object).isocalendar().week:02d}"
        for day in scores.by_seed.losses.label_N.astype("datetime64[D]")
    ]
    assert rule_scores.losses.cluster_N.tolist() == weeks.tolist()
    assert score(MEMBERS).losses.cluster_N is None


class MemoryExhausting(Counting):
    def metrics(self, output, examples, frame):  # noqa: ARG002
        return {"loss": float(np.empty(1 << 46).sum())}


class Wrong(Counting):
    def baseline(self, frame, fold):  # noqa: ARG002
        raise KeyError("no such column")


def test_out_of_memory_in_the_metrics_is_reported():
    workload = MemoryExhausting()
    with pytest.raises(OutOfMemory, match=r"Out of memory in metrics\(\) of the workload"):
        score_candidate(workload, FRAME, FOLDS, MEMBERS, load, subject="candidate")


def test_an_exception_in_the_baseline_of_the_workload_is_reported():
    with pytest.raises(ContractError, match=r"baseline\(\) of the workload raised KeyError.*Wrong"):
        choose_baseline(Wrong(), FRAME, FOLDS, BaselineSettings())
