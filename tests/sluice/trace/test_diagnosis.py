"""One cause is told for a cascade, and a weak finding hides no strong one (TRACE-16)."""

from graphlib import TopologicalSorter

from sluice.trace.diagnosis import diagnose
from sluice.trace.faults import EXPLAINS, FAULTS
from sluice.trace.finding import Finding


def finding(fault, severity="error", *, step=1, confidence=0.9):
    return Finding(
        rule=fault,
        fault=fault,
        confidence=confidence,
        requirement="TRACE-16",
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
        finding("loss not falling", step=9),
        finding("loss not finite", step=4),
        finding("non-finite gradient", step=3),
        finding("non-finite input", step=3),
    ]
    (found,) = diagnose(cascade)

    assert found.fault == "non-finite input"
    assert {f.fault for f in found.explains} == {f.fault for f in cascade[:3]}


def test_a_warning_hides_no_error():
    found = diagnose([finding("rate too high", "warning"), finding("loss not finite")])

    assert [(d.fault, d.explains) for d in found] == [
        ("loss not finite", ()),
        ("rate too high", ()),
    ]


def test_errors_come_first_then_the_most_certain_then_the_earliest():
    found = diagnose(
        [
            finding("constant column", "confirm", confidence=0.99),
            finding("tie lost", confidence=0.8),
            finding("loss broadcasts", step=5),
            finding("begin token doubled", step=2),
        ]
    )

    assert [d.fault for d in found] == [
        "begin token doubled",
        "loss broadcasts",
        "tie lost",
        "constant column",
    ]


def test_no_fault_explains_itself_by_a_detour():
    assert set(EXPLAINS) <= set(FAULTS)
    assert len(list(TopologicalSorter(EXPLAINS).static_order())) >= len(EXPLAINS)


def test_a_question_that_explains_a_later_error_is_answered_by_it():
    carried = finding("gradients carried over", "confirm", step=2)
    (found,) = diagnose([finding("loss not finite", step=30), carried])

    assert (found.fault, found.finding.severity) == ("gradients carried over", "error")
    assert [f.fault for f in found.explains] == ["loss not finite"]


def test_a_question_explains_no_error_that_was_there_before_it():
    later = finding("gradients carried over", "confirm", step=9)
    found = diagnose([finding("loss not finite", step=3), later])

    assert [(d.fault, d.finding.severity) for d in found] == [
        ("loss not finite", "error"),
        ("gradients carried over", "confirm"),
    ]
