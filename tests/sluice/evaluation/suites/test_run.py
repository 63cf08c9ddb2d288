"""Every suite says what a candidate fixes and breaks, and who is to suspect (DATA-5)."""

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
    arms,
    filed,
    flat,
    frame,
    losses,
    members,
    named,
    scores,
)

SETTINGS = SuiteSettings()


def run(suite, three: SuiteScores, settings: SuiteSettings = SETTINGS, own=None):
    return run_suites(
        [filed(suite)], three, WORKLOAD, frame(), own if own is not None else members(), settings
    )


def one(suite, three: SuiteScores, settings: SuiteSettings = SETTINGS, own=None) -> SuiteResult:
    return run(suite, three, settings, own).results[0]


def high(places: list[int], num_seeds: int = 2, level: float = 9.0) -> np.ndarray:
    """Losses that are high on these positions of the frame."""
    loss_SN = flat(num_seeds)
    loss_SN[:, [at - FIRST_TEST for at in places]] = level
    return loss_SN


@pytest.fixture(scope="module")
def changed() -> SuiteScores:
    """Rows 45 and 90 are fixed, 60 is broken, 70 and 100 stay wrong, 100 for the baseline too."""
    return arms(high([60, 70, 100]), high([45, 90, 70, 100]), high([100], num_seeds=1))


def test_fixed_broken_still_wrong_and_still_right_rows_are_counted(changed):
    report = run(named(45, 90, 60, 70, 100, 110, 111), changed)
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


def test_the_data_are_suspected_where_all_seeds_and_the_baseline_are_wrong(changed):
    result = one(named(45, 60, 70, 100), changed)

    assert [row.suspect for row in result.rows] == ["none", "model", "model", "data"]


def test_the_data_are_not_suspected_if_one_seed_is_right(changed):
    candidate = high([60, 70, 100], level=90.0)
    candidate[1, 100 - FIRST_TEST] = 0.5
    acquitted = replace(changed, candidate=scores(losses(candidate, "candidate")))

    row = one(named(100), acquitted).rows[0]

    assert (row.change, row.suspect) == ("still wrong", "model")


def test_examples_list_broken_rows_first_with_reason_losses_and_unusual_features(changed):
    result = one(named(45, 50, 60, 70), changed)
    first, second, *_ = result.examples(4)

    assert (first.label, first.reason, first.change) == (LABELS[60], "row 60", "broken")
    assert (first.candidate_loss, first.baseline_loss) == (9.0, pytest.approx(1.02))
    assert second.label == LABELS[70]
    odd = next(row for row in result.rows if row.label == LABELS[50])
    assert odd.standouts[0].feature == "x"
    assert odd.standouts[0].value == 30.0
    assert result.examples(1) == (first,)


def test_a_classifier_is_wrong_where_half_of_its_seeds_are_wrong():
    def mistaken(*rows_by_seed: list[int]) -> np.ndarray:
        made = np.zeros((len(rows_by_seed), 80))
        for seed, rows in enumerate(rows_by_seed):
            made[seed, [at - FIRST_TEST for at in rows]] = 1
        return made

    three = SuiteScores(
        candidate=scores(losses(flat(4), "c"), mistaken([60], [60, 61], [], [])),
        reference=scores(losses(flat(2), "r"), mistaken([61], [61])),
        baseline=scores(losses(flat(1), "b", seeds=()), mistaken([])),
    )

    report = run(named(60, 61, 62), three)

    assert report.threshold is None
    assert [row.change for row in report.results[0].rows] == ["broken", "fixed", "still right"]


def test_rows_that_are_gone_trained_on_or_untested_are_reported_and_not_scored(changed):
    suite = make_suite(
        "old",
        {str(LABELS[at]): "" for at in (20, 31, 35, 60)} | {"1999-01-01T00:00:00": ""},
        named(0).origin,
    )

    # Trained through row 30, and a target looks one row ahead: row 31 is seen, row 35 is not.
    result = one(suite, changed, own=members(fold_0=30, fold_1=30))

    assert result.gone == ("1999-01-01T00:00:00",)
    assert result.seen == (LABELS[20], LABELS[31])
    assert result.unscored == (LABELS[35],)
    assert [row.label for row in result.rows] == [LABELS[60]]
    assert result.scored_share == 1 / 5


def test_a_row_that_a_member_of_its_own_fold_was_trained_on_is_a_leak(changed):
    suite = named(45, 60)

    # Fold 1's member saw row 60 and does not score it; when fold 0's saw it, the score leaks.
    assert one(suite, changed, own=members(fold_0=30, fold_1=70)).seen == ()
    leaked = one(suite, changed, own=members(fold_0=50))
    assert leaked.seen == (LABELS[45],)
    assert [row.label for row in leaked.rows] == [LABELS[60]]
    # Targets look one row ahead.
    assert one(suite, changed, own=members(fold_0=59)).seen == (LABELS[45], LABELS[60])
    assert one(suite, changed, own=members(fold_0=58)).seen == (LABELS[45],)


def test_a_suite_of_training_rows_is_not_scored_and_its_guard_is_insufficient(changed):
    guard = SuiteSettings(guards=(SuiteGuard(suite="chosen", max_broken_share=1.0),))

    report = run(named(1, 2, 3), changed, guard)

    assert report.results[0].rows == ()
    assert np.isnan(report.results[0].candidate_loss)
    assert report.outcome == "insufficient"
    assert "3 trained on" in report.reason


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_non_finite_loss_is_wrong_and_not_evidence(changed, bad):
    candidate = flat(2)
    candidate[1, 60 - FIRST_TEST] = bad
    diverged = replace(changed, candidate=scores(losses(candidate, "candidate")))

    report = run(
        named(60, 61),
        diverged,
        SuiteSettings(guards=(SuiteGuard(suite="chosen", max_broken_share=1.0),)),
    )

    assert report.results[0].rows[0].change == "broken"
    assert report.results[0].gain.outcome == "INCONCLUSIVE"
    assert report.outcome == "insufficient"
    assert "candidate has non-finite losses (1 of 2 rows)" in report.reason


def test_a_diverged_reference_gives_no_evidence(changed):
    reference = flat(2)
    reference[0, 5] = np.nan
    diverged = replace(changed, reference=scores(losses(reference, "reference")))

    result = one(named(60, 61), diverged)

    assert result.lacking == ("the reference has non-finite losses on the window",)
    assert result.count("broken") == 0


def test_arms_with_other_rows_are_rejected(changed):
    other = replace(changed.reference.losses, label_N=LABELS[:80])

    with pytest.raises(ContractError, match="same \\(fold, row\\) pairs"):
        run(named(60), replace(changed, reference=scores(other)))


def test_retraining_gives_no_gain_on_rows_selected_by_other_seeds():
    """Half of the seeds choose, the others measure: without that the luck of the choice shows."""
    rng = np.random.default_rng(5)
    fair, biased = [], []
    settings = SuiteSettings(min_rows=1000)  # bounds are not looked at
    for _ in range(40):
        reference, candidate = 5 + rng.normal(size=(2, 8, 80))
        three = arms(candidate, reference, flat(1))
        own = hard_suite("hard", three.reference.losses, frame(), ("x",), share=0.2)
        fair.append(one(own, three, settings).gain.gain)
        unknown = own.model_copy(
            update={"origin": own.origin.model_copy(update={"subject": "other"})}
        )
        biased.append(one(unknown, three, settings).gain.gain)

    standard_error = np.std(fair, ddof=1) / np.sqrt(len(fair))
    assert abs(np.mean(fair)) < 3 * standard_error
    assert np.mean(biased) > 6 * standard_error


def test_rows_selected_by_all_seeds_are_not_evidence(changed):
    origin = HighestLoss(subject="reference", window="w", share=0.1, chosen_by=(0, 1))
    suite = make_suite("hard", {str(LABELS[60]): ""}, origin)

    assert one(suite, changed).lacking == (
        "all seeds of the reference were used to select these rows",
    )


def test_a_gain_on_rows_selected_by_the_losses_of_a_rule_is_not_evidence(changed):
    """Regression to the mean: any other model looks better there, and that is no evidence."""
    rule = SuiteScores(
        candidate=changed.candidate, reference=changed.baseline, baseline=changed.baseline
    )
    rows = {str(label): "" for label in LABELS[40:80]}
    origin = HighestLoss(subject="baseline", window="w", share=0.1, chosen_by=())

    by_losses = one(make_suite("hard", rows, origin), rule)
    by_name = one(named(*range(40, 80)), rule)

    assert by_losses.gain.outcome == "INCONCLUSIVE"
    assert by_losses.gain.lacking == "the losses of the reference were used to select these rows"
    assert by_losses.lacking == ()
    assert by_name.gain.lacking == ""


def test_suite_guard_outcomes_are_passed_to_the_promotion_gate(changed):
    """DATA-5, STAT-1: a suite that must hold stands beside the gate's other guards."""
    settings = SuiteSettings(
        guards=(
            SuiteGuard(suite="chosen", max_broken_share=0.5),
            SuiteGuard(suite="absent", min_fixed=1),
        )
    )
    report = run(named(45, 60), changed, settings)

    said = {guard.name: (guard.result, guard.passed) for guard in report.guard_outcomes}
    assert said == {"suite chosen": ("pass", True), "suite absent": ("insufficient", False)}
    assert run(named(45, 60), changed).guard_outcomes == ()
