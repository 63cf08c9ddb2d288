"""A gate report on the terminal and in a notebook."""

import io

import pytest
from rich.console import Console

from sluice.config.poc_settings import TimeLimit
from sluice.failfast.gate.display import examples_table, problem_text, report_page
from sluice.failfast.result import CheckResult, GateReport
from sluice.findings.check_outcome import CheckOutcome, HardExample


def test_an_unknown_ratio_to_the_median_loss_is_a_dash():
    examples = (
        HardExample(row="a", loss=3.0, times_median=2.0),
        HardExample(row="b", loss=0.5, times_median=float("nan")),
    )
    output = io.StringIO()

    Console(file=output, width=100).print(examples_table(examples))

    lines = [line.split() for line in output.getvalue().splitlines()]
    assert ["a", "3", "2.0", "none"] in lines
    assert ["b", "0.5", "-", "none"] in lines


def test_a_problem_refers_to_its_explanation():
    output = io.StringIO()
    for fault in ("dead units", None):
        outcome = CheckOutcome(outcome="fail", summary="Wrong.", fault=fault)
        limit = TimeLimit(typical_s=1.0, max_s=2.0)
        result = CheckResult.of(
            outcome, name="data_loads", check_id="data_loading", seconds=0.1, limit=limit
        )
        Console(file=output, width=100).print(problem_text(result))

    lines = [line.split() for line in output.getvalue().splitlines()]
    assert ["see:", "sluice", "explain", "dead-units"] in lines
    assert ["see:", "sluice", "explain", "data_loads"] in lines


@pytest.mark.parametrize(
    ("outcomes", "counts"),
    [
        (("pass",) * 3, "3 of 3 checks passed"),
        (("pass", "warn", "pass"), "2 of 3 checks passed, 1 warning"),
        (("warn", "fail", "warn"), "0 of 3 checks passed, 2 warnings"),
    ],
)
def test_warnings_are_not_counted_as_passed_checks(outcomes, counts):
    limit = TimeLimit(typical_s=1.0, max_s=2.0)
    results = tuple(
        CheckResult.of(
            CheckOutcome(outcome=outcome, summary="Seen."),
            name="data_loads",
            check_id="data_loading",
            seconds=0.1,
            limit=limit,
        )
        for outcome in outcomes
    )
    report = GateReport(level="full", workload="Signals", results=results, seconds=1.5)
    output = io.StringIO()

    Console(file=output, width=100).print(report_page(report))

    verdict = "failed" if "fail" in outcomes else "passed"
    assert f"The full gate {verdict}: {counts}, in 1.5 s." in output.getvalue()
    assert f"{counts}, in 1.5 s (full gate)." in report._repr_html_()
