"""A guard on a suite passes only if the evidence shows that all its limits hold (DATA-5)."""

import pytest

from sluice.base.errors import SettingsError
from sluice.evaluation.suites.gain import SuiteGain
from sluice.evaluation.suites.guard import evaluate_guard
from sluice.evaluation.suites.result import RowResult, SuiteReport, SuiteResult
from sluice.evaluation.suites.settings import SuiteGuard, SuiteSettings
from sluice.evaluation.suites.suite import Query

NAN = float("nan")
SETTINGS = SuiteSettings()


def make_result(
    *,
    broken: int = 0,
    fixed: int = 0,
    right: int = 10,
    num_rows: int | None = None,
    low: float = -0.1,
    high: float = 0.1,
    lacking: tuple[str, ...] = (),
) -> SuiteResult:
    changes = ["broken"] * broken + ["fixed"] * fixed + ["still right"] * right
    rows = tuple(
        RowResult(
            label=str(index),
            fold_id=0,
            change=change,
            suspect="none",
            candidate_loss=1.0,
            reference_loss=1.0,
            baseline_loss=1.0,
            standouts=(),
            reason="",
        )
        for index, change in enumerate(changes)
    )
    return SuiteResult(
        name="hard",
        version=3,
        digest="d" * 64,
        origin=Query(expression="x > 1"),
        num_rows=len(rows) if num_rows is None else num_rows,
        rows=rows,
        gone=(),
        seen=(),
        unscored=(),
        gain=SuiteGain(gain=0.0, low=low, high=high, alpha=0.05, lacking="" if low == low else "?"),
        lacking=lacking,
    )


def run_guard(result: SuiteResult | None, **limits):
    return evaluate_guard(SuiteGuard(suite="hard", **limits), result, SETTINGS, unit="nats")


@pytest.mark.parametrize(
    ("result", "limits", "outcome"),
    [
        (make_result(broken=1, right=9), {"max_broken_share": 0.1}, "pass"),
        (make_result(broken=2, right=9), {"max_broken_share": 0.1}, "fail"),
        (make_result(broken=0), {"max_broken_share": 0.0}, "pass"),
        (make_result(fixed=3), {"min_fixed": 3}, "pass"),
        (make_result(fixed=2), {"min_fixed": 3}, "fail"),
        (make_result(low=-0.1), {"margin": 0.11}, "pass"),
        (make_result(low=-0.1), {"margin": 0.1}, "insufficient"),
        (make_result(low=-0.3, high=-0.2), {"margin": 0.1}, "fail"),
        (make_result(low=-0.3, high=0.2), {"margin": 0.0}, "insufficient"),
        (make_result(low=NAN, high=NAN), {"margin": 100.0}, "insufficient"),
        (make_result(fixed=3, low=-0.3), {"min_fixed": 3, "margin": 0.1}, "insufficient"),
        (make_result(fixed=2, low=-0.05), {"min_fixed": 3, "margin": 0.1}, "fail"),
        (make_result(lacking=("diverged",)), {"max_broken_share": 1.0}, "insufficient"),
        (make_result(broken=9, lacking=("diverged",)), {"max_broken_share": 0.1}, "fail"),
        (make_result(right=10, num_rows=20), {"max_broken_share": 1.0}, "pass"),
        (make_result(right=10, num_rows=21), {"max_broken_share": 1.0}, "insufficient"),
        (make_result(right=0, num_rows=5), {"max_broken_share": 1.0}, "insufficient"),
        (None, {"max_broken_share": 1.0}, "insufficient"),
    ],
)
def test_each_limit_of_a_guard_gives_the_expected_outcome(result, limits, outcome):
    verdict = run_guard(result, **limits)

    assert verdict.outcome == outcome
    assert bool(verdict.remedy) == (outcome != "pass")


def test_the_reason_names_the_suite_the_observed_and_the_allowed_share():
    verdict = run_guard(make_result(broken=2, right=8), max_broken_share=0.1)

    assert verdict.reason == ("Suite 'hard': 2 of 10 rows are broken (20.00%), allowed 10.00%.")
    assert run_guard(None, min_fixed=1).reason == ("Suite 'hard' has a guard but does not exist.")


def make_report(*outcomes: str) -> SuiteReport:
    guards = {
        "pass": run_guard(make_result(), max_broken_share=0.1),
        "fail": run_guard(make_result(broken=9), max_broken_share=0.1),
        "insufficient": run_guard(None, min_fixed=1),
    }
    return SuiteReport(
        candidate="c",
        reference="r",
        window="w",
        unit="nats",
        threshold=1.0,
        results=(),
        guards=tuple(guards[outcome] for outcome in outcomes),
    )


@pytest.mark.parametrize(
    ("outcomes", "together"),
    [
        ((), "pass"),
        (("pass", "pass"), "pass"),
        (("pass", "insufficient"), "insufficient"),
        (("insufficient", "fail", "pass"), "fail"),
    ],
)
def test_a_failed_guard_takes_precedence_over_an_insufficient_one_and_both_over_a_pass(
    outcomes, together
):
    assert make_report(*outcomes).outcome == together
    assert make_report(*outcomes).passed == (together == "pass")


@pytest.mark.parametrize(
    ("guards", "message"),
    [
        ([{"suite": "hard"}], "needs max_broken_share, min_fixed or margin"),
        ([{"suite": "hard", "max_broken_share": 1.5}], "max_broken_share"),
        ([{"suite": "hard", "min_fixed": 1}] * 2, "at most one guard, got guards for hard, hard"),
    ],
)
def test_a_guard_without_limits_or_with_a_duplicate_suite_is_rejected(guards, message):
    with pytest.raises(SettingsError, match=message):
        SuiteSettings.parse({"guards": guards}, where="test")


def test_a_margin_of_zero_is_displayed_without_a_sign():
    verdict = run_guard(make_result(low=0.1), margin=0.0)

    assert verdict.reason.endswith("required above 0.")


def test_the_remedy_for_rows_selected_by_all_seeds_is_more_seeds():
    selected = "all seeds of the candidate were used to select these rows"

    result = run_guard(make_result(lacking=(selected,)), max_broken_share=1.0)
    diverged = run_guard(
        make_result(lacking=("the candidate has non-finite losses",)), max_broken_share=1.0
    )

    assert result.remedy.startswith("Train the model with more seeds")
    assert diverged.remedy == "Find out why the model diverged."


@pytest.mark.parametrize(
    ("gain_problem", "result_problems", "remedy"),
    [
        ("7 scored rows, required 30", (), "Add rows to the suite, or train more seeds."),
        (
            "the gain is the same on every row",
            (),
            "Check that the two models have different predictions.",
        ),
        (
            "the losses of the reference were used to select these rows",
            (),
            "Remove the margin: a rule without seeds selected these rows.",
        ),
        (
            "the candidate has non-finite losses",
            ("the candidate has non-finite losses",),
            "Find out why the model diverged.",
        ),
    ],
)
def test_the_remedy_for_absent_bounds_cures_their_cause(gain_problem, result_problems, remedy):
    gain = SuiteGain(gain=0.0, low=NAN, high=NAN, alpha=0.05, lacking=gain_problem)
    result = make_result(lacking=result_problems).model_copy(update={"gain": gain})

    assert run_guard(result, margin=0.1).remedy == remedy
