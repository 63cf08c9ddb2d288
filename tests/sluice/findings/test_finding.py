"""Findings of the POC gate, the tracer and the training diagnosis have one type."""

import io

import pytest
from pydantic import ValidationError
from rich.console import Console

from sluice.checks.poc_report import _metadata
from sluice.config.poc_settings import TimeLimit
from sluice.failfast.gate.display import problem_text
from sluice.failfast.result import CheckResult, GateReport
from sluice.findings.catalogue import find_fault
from sluice.findings.check_outcome import CheckOutcome
from sluice.findings.finding import Finding
from sluice.trace.finding import TraceFinding
from sluice.trace.rules.structure.dead_units import DEAD_UNITS

FAILED = CheckOutcome(outcome="fail", summary="Seen.", fault="dead units")


def make_check_result(outcome: CheckOutcome) -> CheckResult:
    limit = TimeLimit(typical_s=1.0, max_s=2.0)
    return CheckResult.of(outcome, name="a_holds", check_id="a", seconds=0.5, limit=limit)


def test_cause_fix_and_severity_default_to_those_of_the_fault():
    entry = find_fault("overfitting")

    finding = Finding.of("overfitting", what="Seen.", evidence={"epoch": 3})

    assert (finding.severity, finding.cause, finding.fix) == (
        entry.severity,
        entry.cause,
        entry.fix,
    )
    assert finding.explain_command == "sluice explain overfitting"
    assert Finding.of("overfitting", what="Seen.", evidence={}, fix="Do.").fix == "Do."


def test_a_fault_that_is_not_in_the_catalogue_is_rejected():
    with pytest.raises(ValidationError, match="fault"):
        Finding(
            fault="bad luck",  # type: ignore[arg-type]
            severity="error",
            what="w.",
            cause="c.",
            fix="f.",
            evidence={},
        )


def test_a_finding_of_a_rule_has_the_explain_command_of_its_fault():
    found = DEAD_UNITS.finding(severity="error", step=3, what="w.", cause="c.", fix="f.", units=4)

    assert isinstance(found, TraceFinding)
    assert isinstance(found, Finding)
    assert found.evidence == {"units": 4}
    assert found.explain_command == "sluice explain dead-units"


@pytest.mark.parametrize(
    ("outcome", "severity"), [("fail", "error"), ("warn", "warning"), ("insufficient", "error")]
)
def test_a_check_that_does_not_pass_has_a_finding(outcome, severity):
    check_outcome = CheckOutcome(
        outcome=outcome, summary="Seen.", fault="dead units", numbers={"units": 4}, fix="Do."
    )

    finding = make_check_result(check_outcome).finding

    assert finding == Finding(
        fault="dead units",
        severity=severity,
        what="Seen.",
        cause=find_fault("dead units").cause,
        fix="Do.",
        evidence={"units": 4},
    )


def test_the_terminal_report_prints_the_explain_command_of_a_problem():
    console = Console(file=io.StringIO(), width=100)

    console.print(problem_text(make_check_result(FAILED)))
    console.print(problem_text(make_check_result(CheckOutcome(outcome="fail", summary="Odd."))))

    printed = console.file.getvalue()
    assert printed.count("see:") == 2
    assert "sluice explain dead-units" in printed
    assert "sluice explain a_holds" in printed  # no fault of the catalogue


def test_the_asset_check_has_the_explain_command_of_a_problem():
    assert _metadata(make_check_result(FAILED))["explained by"] == "sluice explain dead-units"
    assert "explained by" not in _metadata(
        make_check_result(CheckOutcome(outcome="pass", summary="Fine."))
    )


def test_a_report_lists_the_findings_of_its_checks():
    passed = make_check_result(CheckOutcome(outcome="pass", summary="Fine."))
    warned = make_check_result(CheckOutcome(outcome="warn", summary="Close.", fault="explosion"))
    report = GateReport(level="full", workload="W", results=(passed, warned), seconds=1.0)

    assert passed.finding is None
    assert [finding.fault for finding in report.findings] == ["explosion"]


def test_a_stored_result_without_a_fault_is_still_read():
    stored = make_check_result(CheckOutcome(outcome="pass", summary="Fine.")).model_dump()
    del stored["fault"]

    assert CheckResult.model_validate(stored).fault is None
