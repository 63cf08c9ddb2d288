"""A suite that guards promotion passes only when everything asked for is shown (DATA-5)."""

import pytest

from sluice.base.errors import SettingsError
from sluice.evaluation.suites.gain import SuiteGain
from sluice.evaluation.suites.guard import evaluate_guard
from sluice.evaluation.suites.result import RowResult, SuiteReport, SuiteResult
from sluice.evaluation.suites.settings import SuiteGuard, SuiteSettings
from sluice.evaluation.suites.suite import Query

NAN = float("nan")
SETTINGS = SuiteSettings()


def result(
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
            label=str(at),
            fold_id=0,
            change=change,
            suspect="none",
            candidate_loss=1.0,
            reference_loss=1.0,
            baseline_loss=1.0,
            standouts=(),
            reason="",
        )
        for at, change in enumerate(changes)
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


def judge(found: SuiteResult | None, **limits):
    return evaluate_guard(SuiteGuard(suite="hard", **limits), found, SETTINGS, unit="nats")


@pytest.mark.parametrize(
    ("found", "limits", "outcome"),
    [
        (result(broken=1, right=9), {"max_broken_share": 0.1}, "pass"),
        (result(broken=2, right=9), {"max_broken_share": 0.1}, "fail"),
        (result(broken=0), {"max_broken_share": 0.0}, "pass"),
        (result(fixed=3), {"min_fixed": 3}, "pass"),
        (result(fixed=2), {"min_fixed": 3}, "fail"),
        (result(low=-0.1), {"margin": 0.11}, "pass"),
        (result(low=-0.1), {"margin": 0.1}, "insufficient"),
        (result(low=-0.3, high=-0.2), {"margin": 0.1}, "fail"),
        (result(low=-0.3, high=0.2), {"margin": 0.0}, "insufficient"),
        (result(low=NAN, high=NAN), {"margin": 100.0}, "insufficient"),
        (result(fixed=3, low=-0.3), {"min_fixed": 3, "margin": 0.1}, "insufficient"),
        (result(fixed=2, low=-0.05), {"min_fixed": 3, "margin": 0.1}, "fail"),
        (result(lacking=("diverged",)), {"max_broken_share": 1.0}, "insufficient"),
        (result(broken=9, lacking=("diverged",)), {"max_broken_share": 0.1}, "fail"),
        (result(right=10, num_rows=20), {"max_broken_share": 1.0}, "pass"),
        (result(right=10, num_rows=21), {"max_broken_share": 1.0}, "insufficient"),
        (result(right=0, num_rows=5), {"max_broken_share": 1.0}, "insufficient"),
        (None, {"max_broken_share": 1.0}, "insufficient"),
    ],
)
def test_each_limit_gives_the_expected_outcome(found, limits, outcome):
    verdict = judge(found, **limits)

    assert verdict.outcome == outcome
    assert bool(verdict.remedy) == (outcome != "pass")


def test_the_reason_names_the_suite_and_both_numbers():
    verdict = judge(result(broken=2, right=8), max_broken_share=0.1)

    assert verdict.reason == ("Suite 'hard': 2 of 10 rows are broken (20.00%), allowed 10.00%.")
    assert judge(None, min_fixed=1).reason == ("Suite 'hard' has a guard but does not exist.")


def report(*outcomes: str) -> SuiteReport:
    made = {
        "pass": judge(result(), max_broken_share=0.1),
        "fail": judge(result(broken=9), max_broken_share=0.1),
        "insufficient": judge(None, min_fixed=1),
    }
    return SuiteReport(
        candidate="c",
        reference="r",
        window="w",
        unit="nats",
        threshold=1.0,
        results=(),
        guards=tuple(made[outcome] for outcome in outcomes),
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
def test_a_failure_takes_precedence_over_missing_evidence_and_both_over_a_pass(outcomes, together):
    assert report(*outcomes).outcome == together
    assert report(*outcomes).passed == (together == "pass")


@pytest.mark.parametrize(
    ("guards", "message"),
    [
        ([{"suite": "hard"}], "needs max_broken_share, min_fixed or margin"),
        ([{"suite": "hard", "max_broken_share": 1.5}], "max_broken_share"),
        ([{"suite": "hard", "min_fixed": 1}] * 2, "one guard per suite, got guards for hard, hard"),
    ],
)
def test_a_guard_without_limits_or_with_a_duplicate_suite_is_rejected(guards, message):
    with pytest.raises(SettingsError, match=message):
        SuiteSettings.parse({"guards": guards}, where="test")


def test_a_margin_of_zero_is_displayed_without_a_sign():
    verdict = judge(result(low=0.1), margin=0.0)

    assert verdict.reason.endswith("required above 0.")


def test_the_fix_for_rows_that_all_seeds_selected_is_not_about_divergence():
    selected = "all seeds of the candidate were used to select these rows"

    found = judge(result(lacking=(selected,)), max_broken_share=1.0)
    diverged = judge(result(lacking=("the candidate has non-finite losses",)), max_broken_share=1.0)

    assert found.remedy.startswith("Train the model with more seeds")
    assert diverged.remedy == "Find out why the model diverged."
