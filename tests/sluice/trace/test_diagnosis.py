"""Diagnosis of root causes and their consequences from findings (TRACE-16)."""

from sluice.trace.diagnosis import diagnose
from sluice.trace.finding import TraceFinding


def finding(fault, severity="error", *, step=1, confidence=0.9):
    return TraceFinding(
        rule=fault,
        fault=fault,
        confidence=confidence,
        severity=severity,
        step=step,
        what="Seen.",
        cause="Why.",
        fix="Do.",
        evidence={},
        contradicted_by="Not so.",
    )


def test_a_cascade_is_one_cause_with_its_consequences():
    cascade = [
        finding("loss not decreasing", step=9),
        finding("non-finite loss", step=4),
        finding("non-finite gradient", step=3),
        finding("non-finite input", step=3),
    ]
    (found,) = diagnose(cascade)

    assert found.fault == "non-finite input"
    assert {f.fault for f in found.explains} == {f.fault for f in cascade[:3]}


def test_a_warning_does_not_hide_an_error():
    found = diagnose([finding("learning rate too high", "warning"), finding("non-finite loss")])

    assert [(d.fault, d.explains) for d in found] == [
        ("non-finite loss", ()),
        ("learning rate too high", ()),
    ]


def test_diagnoses_are_sorted_by_severity_confidence_and_step():
    found = diagnose(
        [
            finding("constant column", "confirm", confidence=0.99),
            finding("tied weights broken", confidence=0.8),
            finding("loss broadcasting", step=5),
            finding("duplicate BOS token", step=2),
        ]
    )

    assert [d.fault for d in found] == [
        "duplicate BOS token",
        "loss broadcasting",
        "tied weights broken",
        "constant column",
    ]


def test_a_confirm_finding_that_explains_a_later_error_becomes_an_error():
    missing_zero_grad = finding("missing zero_grad", "confirm", step=2)
    (found,) = diagnose([finding("non-finite loss", step=30), missing_zero_grad])

    assert (found.fault, found.finding.severity) == ("missing zero_grad", "error")
    assert [f.fault for f in found.explains] == ["non-finite loss"]


def test_a_confirm_finding_does_not_explain_an_earlier_error():
    later = finding("missing zero_grad", "confirm", step=9)
    found = diagnose([finding("non-finite loss", step=3), later])

    assert [(d.fault, d.finding.severity) for d in found] == [
        ("non-finite loss", "error"),
        ("missing zero_grad", "confirm"),
    ]
