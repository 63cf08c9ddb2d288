"""A suite run reports fixed and broken rows and suspects the model or the data (DATA-5)."""

from dataclasses import replace

import numpy as np
import pytest

from sluice.base.errors import ContractError
from sluice.evaluation.suites.hard_rows import hard_suite
from sluice.evaluation.suites.result import SuiteResult
from sluice.evaluation.suites.run import SuiteScores, run_suites
from sluice.evaluation.suites.settings import SuiteGuard, SuiteSettings
from sluice.evaluation.suites.suite import HighestLoss, make_suite
from tests.sluice.evaluation.suites.suite_samples import (
    FIRST_TEST,
    LABELS,
    WORKLOAD,
    make_flat_losses,
    make_frame,
    make_losses,
    make_members,
    make_rows_suite,
    make_scores,
    make_suite_scores,
    make_version,
)

SETTINGS = SuiteSettings()


def run_suite(suite, suite_scores: SuiteScores, settings: SuiteSettings = SETTINGS, members=None):
    return run_suites(
        [make_version(suite)],
        suite_scores,
        WORKLOAD,
        make_frame(),
        members if members is not None else make_members(),
        settings,
    )


def run_one_suite(
    suite, suite_scores: SuiteScores, settings: SuiteSettings = SETTINGS, members=None
) -> SuiteResult:
    return run_suite(suite, suite_scores, settings, members).results[0]


def make_high_losses(positions: list[int], num_seeds: int = 2, level: float = 9.0) -> np.ndarray:
    """Return losses that are high at these positions of the frame."""
    loss_SN = make_flat_losses(num_seeds)
    loss_SN[:, [position - FIRST_TEST for position in positions]] = level
    return loss_SN


@pytest.fixture(scope="module")
def changed() -> SuiteScores:
    """Rows 45 and 90 are fixed, 60 is broken; 70 and 100 stay wrong, 100 also for the baseline."""
    return make_suite_scores(
        make_high_losses([60, 70, 100]),
        make_high_losses([45, 90, 70, 100]),
        make_high_losses([100], num_seeds=1),
    )


def test_fixed_broken_still_wrong_and_still_right_rows_are_counted(changed):
    report = run_suite(make_rows_suite(45, 90, 60, 70, 100, 110, 111), changed)
    result = report.results[0]

    assert {row.label: row.change for row in result.rows} == {
        LABELS[45]: "fixed",
        LABELS[90]: "fixed",
        LABELS[60]: "broken",
        LABELS[70]: "still wrong",
        LABELS[100]: "still wrong",
        LABELS[110]: "still right",
        LABELS[111]: "still right",
    }
    assert (result.count("fixed"), result.count("broken")) == (2, 1)
    assert result.reference_loss == pytest.approx((4 * 9 + 1.02 + 1.07 + 1.071) / 7)
    # The 0.9 quantile of 80 losses: 76 rise from 1 by 0.001 a row and four are 9.
    assert report.threshold == pytest.approx(1.0, abs=0.08)


def test_the_data_are_suspected_if_all_seeds_and_the_baseline_are_wrong(changed):
    result = run_one_suite(make_rows_suite(45, 60, 70, 100), changed)

    assert [row.suspect for row in result.rows] == ["none", "model", "model", "data"]


def test_the_data_are_not_suspected_if_one_seed_is_right(changed):
    candidate = make_high_losses([60, 70, 100], level=90.0)
    candidate[1, 100 - FIRST_TEST] = 0.5
    one_right = replace(changed, candidate=make_scores(make_losses(candidate, "candidate")))

    row = run_one_suite(make_rows_suite(100), one_right).rows[0]

    assert (row.change, row.suspect) == ("still wrong", "model")


def test_examples_list_broken_rows_first_with_reason_losses_and_unusual_features(changed):
    result = run_one_suite(make_rows_suite(45, 50, 60, 70), changed)
    first, second, *_ = result.examples(4)

    assert (first.label, first.reason, first.change) == (LABELS[60], "row 60", "broken")
    assert (first.candidate_loss, first.baseline_loss) == (9.0, pytest.approx(1.02))
    assert second.label == LABELS[70]
    unusual_row = next(row for row in result.rows if row.label == LABELS[50])
    assert unusual_row.standouts[0].feature == "x"
    assert unusual_row.standouts[0].value == 30.0
    assert result.examples(1) == (first,)


def test_a_classifier_is_wrong_if_half_of_its_seeds_are_wrong():
    def make_mistakes(*rows_by_seed: list[int]) -> np.ndarray:
        mistake_SN = np.zeros((len(rows_by_seed), 80))
        for seed, rows in enumerate(rows_by_seed):
            mistake_SN[seed, [position - FIRST_TEST for position in rows]] = 1
        return mistake_SN

    suite_scores = SuiteScores(
        candidate=make_scores(
            make_losses(make_flat_losses(4), "c"), make_mistakes([60], [60, 61], [], [])
        ),
        reference=make_scores(make_losses(make_flat_losses(2), "r"), make_mistakes([61], [61])),
        baseline=make_scores(make_losses(make_flat_losses(1), "b", seeds=()), make_mistakes([])),
    )

    report = run_suite(make_rows_suite(60, 61, 62), suite_scores)

    assert report.threshold is None
    assert [row.change for row in report.results[0].rows] == ["broken", "fixed", "still right"]


def test_a_diverged_classifier_is_wrong_even_if_argmax_returns_the_true_class():
    diverged_SN = make_flat_losses(2)
    diverged_SN[:, 60 - FIRST_TEST] = np.nan
    no_mistakes_SN = np.zeros((2, 80))
    suite_scores = SuiteScores(
        candidate=make_scores(make_losses(diverged_SN, "c"), no_mistakes_SN),
        reference=make_scores(make_losses(make_flat_losses(2), "r"), no_mistakes_SN),
        baseline=make_scores(make_losses(make_flat_losses(1), "b", seeds=()), no_mistakes_SN[:1]),
    )

    result = run_one_suite(make_rows_suite(60, 61), suite_scores)

    assert [row.change for row in result.rows] == ["broken", "still right"]


def test_missing_trained_and_untested_rows_are_reported_and_not_scored(changed):
    suite = make_suite(
        "old",
        {str(LABELS[position]): "" for position in (20, 31, 35, 60)} | {"1999-01-01T00:00:00": ""},
        make_rows_suite(0).origin,
    )

    # Trained through row 30, and the horizon is one row: row 31 is seen, row 35 is not.
    result = run_one_suite(suite, changed, members=make_members(fold_0=30, fold_1=30))

    assert result.gone == ("1999-01-01T00:00:00",)
    assert result.seen == (LABELS[20], LABELS[31])
    assert result.unscored == (LABELS[35],)
    assert [row.label for row in result.rows] == [LABELS[60]]
    assert result.scored_share == 1 / 5


def test_a_row_in_the_training_data_of_its_fold_is_not_scored(changed):
    suite = make_rows_suite(45, 60)

    # The member of fold 1 saw row 60, but only that of fold 0 scores it.
    assert run_one_suite(suite, changed, members=make_members(fold_0=30, fold_1=70)).seen == ()
    leaked = run_one_suite(suite, changed, members=make_members(fold_0=50))
    assert leaked.seen == (LABELS[45],)
    assert [row.label for row in leaked.rows] == [LABELS[60]]
    # The horizon is one row.
    assert run_one_suite(suite, changed, members=make_members(fold_0=59)).seen == (
        LABELS[45],
        LABELS[60],
    )
    assert run_one_suite(suite, changed, members=make_members(fold_0=58)).seen == (LABELS[45],)


def test_a_suite_of_training_rows_is_not_scored_and_its_guard_is_insufficient(changed):
    guard = SuiteSettings(guards=(SuiteGuard(suite="chosen", max_broken_share=1.0),))

    report = run_suite(make_rows_suite(1, 2, 3), changed, guard)

    assert report.results[0].rows == ()
    assert np.isnan(report.results[0].candidate_loss)
    assert report.outcome == "insufficient"
    assert "3 used for training" in report.reason


@pytest.mark.parametrize("loss", [np.nan, np.inf])
def test_a_non_finite_loss_counts_as_broken_and_makes_the_guard_insufficient(changed, loss):
    candidate = make_flat_losses(2)
    candidate[1, 60 - FIRST_TEST] = loss
    diverged = replace(changed, candidate=make_scores(make_losses(candidate, "candidate")))

    report = run_suite(
        make_rows_suite(60, 61),
        diverged,
        SuiteSettings(guards=(SuiteGuard(suite="chosen", max_broken_share=1.0),)),
    )

    assert report.results[0].rows[0].change == "broken"
    assert report.results[0].gain.outcome == "INCONCLUSIVE"
    assert report.outcome == "insufficient"
    assert "candidate has non-finite losses (1 of 2 rows)" in report.reason


def test_a_diverged_reference_gives_no_evidence(changed):
    reference = make_flat_losses(2)
    reference[0, 5] = np.nan
    diverged = replace(changed, reference=make_scores(make_losses(reference, "reference")))

    result = run_one_suite(make_rows_suite(60, 61), diverged)

    assert result.lacking == ("the reference has non-finite losses on the window",)
    assert result.count("broken") == 0


def test_arms_with_other_rows_are_rejected(changed):
    other = replace(changed.reference.losses, label_N=LABELS[:80])

    with pytest.raises(ContractError, match="same \\(fold, row\\) pairs"):
        run_suite(make_rows_suite(60), replace(changed, reference=make_scores(other)))


def test_retraining_gives_no_gain_on_rows_selected_by_other_seeds():
    """Half of the seeds select the rows and the others measure the gain.

    If the same seeds do both, the selection biases the gain.
    """
    rng = np.random.default_rng(5)
    unbiased_gains, biased_gains = [], []
    settings = SuiteSettings(min_rows=1000)  # bounds are not needed
    for _ in range(40):
        reference, candidate = 5 + rng.normal(size=(2, 8, 80))
        suite_scores = make_suite_scores(candidate, reference, make_flat_losses(1))
        members = hard_suite("hard", suite_scores.reference.losses, make_frame(), ("x",), share=0.2)
        unbiased_gains.append(run_one_suite(members, suite_scores, settings).gain.gain)
        unknown = members.model_copy(
            update={"origin": members.origin.model_copy(update={"subject": "other"})}
        )
        biased_gains.append(run_one_suite(unknown, suite_scores, settings).gain.gain)

    standard_error = np.std(unbiased_gains, ddof=1) / np.sqrt(len(unbiased_gains))
    assert abs(np.mean(unbiased_gains)) < 3 * standard_error
    assert np.mean(biased_gains) > 6 * standard_error


def test_rows_selected_by_all_seeds_are_not_evidence(changed):
    origin = HighestLoss(subject="reference", window="w", share=0.1, chosen_by=(0, 1))
    suite = make_suite("hard", {str(LABELS[60]): ""}, origin)

    assert run_one_suite(suite, changed).lacking == (
        "all seeds of the reference were used to select these rows",
    )


def test_a_gain_on_rows_selected_by_the_losses_of_a_rule_is_not_evidence(changed):
    """Any other model has lower losses on such rows, by regression to the mean."""
    rule = SuiteScores(
        candidate=changed.candidate, reference=changed.baseline, baseline=changed.baseline
    )
    rows = {str(label): "" for label in LABELS[40:80]}
    origin = HighestLoss(subject="baseline", window="w", share=0.1, chosen_by=())

    by_losses = run_one_suite(make_suite("hard", rows, origin), rule)
    by_name = run_one_suite(make_rows_suite(*range(40, 80)), rule)

    assert by_losses.gain.outcome == "INCONCLUSIVE"
    assert by_losses.gain.lacking == "the losses of the reference were used to select these rows"
    assert by_losses.lacking == ()
    assert by_name.gain.lacking == ""


def test_suite_guard_outcomes_are_passed_to_the_promotion_gate(changed):
    """The guards of suites are evaluated with the other guards of the gate (DATA-5, STAT-1)."""
    settings = SuiteSettings(
        guards=(
            SuiteGuard(suite="chosen", max_broken_share=0.5),
            SuiteGuard(suite="absent", min_fixed=1),
        )
    )
    report = run_suite(make_rows_suite(45, 60), changed, settings)

    outcomes = {guard.name: (guard.result, guard.passed) for guard in report.guard_outcomes}
    assert outcomes == {"suite chosen": ("pass", True), "suite absent": ("insufficient", False)}
    assert run_suite(make_rows_suite(45, 60), changed).guard_outcomes == ()
