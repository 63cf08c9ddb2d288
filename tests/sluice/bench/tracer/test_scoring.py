"""Scores of the fault benchmark (TRACE-16)."""

import io
import math

import pytest
from rich.console import Console

from sluice.bench.tracer.result import ReportedCause, RunResult
from sluice.bench.tracer.scoring import score
from sluice.bench.tracer.table import report_page, run_line


def make_cause(fault="dead units", severity="error", step=5):
    return ReportedCause(
        fault=fault, severity=severity, step=step, confidence=0.9, what="", explains=()
    )


def make_run(*causes, kind="fault", **fields):
    defaults = {
        "number": 33,
        "name": "dead ReLU",
        "kind": kind,
        "net": "mlp",
        "seed": 0,
        "right": ("dead units",) if kind == "fault" else (),
        "needs": "error",
        "starts_at": 5,
        "within": 3,
        "steps": 100,
        "seconds": 1.0,
        "answers": causes,
    }
    return RunResult(**(defaults | fields))


OTHER = make_cause("learning rate too high")


@pytest.mark.parametrize(
    ("causes", "rank"),
    [
        ((make_cause(),), 1),
        ((OTHER, make_cause()), 2),
        ((OTHER,), None),
        ((make_cause(severity="confirm"),), None),
        ((make_cause(severity="warning"), make_cause(severity="error")), 2),
        ((), None),
    ],
)
def test_only_an_error_with_the_right_cause_counts(causes, rank):
    assert make_run(*causes).correct_rank == rank


def test_confirm_is_the_correct_severity_where_only_intent_decides():
    assert make_run(make_cause(severity="confirm"), needs="confirm").correct_rank == 1
    assert make_run(make_cause(severity="warning"), needs="confirm").correct_rank is None


@pytest.mark.parametrize(
    ("step", "in_time"), [(3, False), (4, True), (5, True), (8, True), (9, False)]
)
def test_cause_is_in_time_only_near_the_first_faulty_step(step, in_time):
    assert make_run(make_cause(step=step)).is_in_time is in_time


def test_detection_rates_include_failed_runs():
    report = score(
        [
            make_run(make_cause()),
            make_run(OTHER, make_cause()),
            make_run(OTHER),
            make_run(failed="it raised"),
        ]
    )

    figures = {figure.name: figure.rate for figure in report.figures}
    assert (figures["faults detected"].count, figures["faults detected"].total) == (2, 4)
    assert figures["correct cause first"].count == 1
    assert figures["correct cause among the first three"].count == 2
    (fault,) = report.faults
    assert fault.instead == {"error: learning rate too high": 2, "failed: it raised": 1}
    assert fault.late == 0
    assert not report.passed


def test_failed_run_is_not_detected_even_if_its_trace_has_the_cause():
    run = make_run(make_cause(), failed="it took too long")

    assert run.correct_rank is None
    (fault,) = score([run]).faults
    assert (fault.caught.count, fault.in_time.count) == (0, 0)
    assert fault.instead == {"failed: it took too long": 1}


def test_false_alarms_are_counted_by_severity_without_failed_runs():
    report = score(
        [
            make_run(kind="twin"),
            make_run(OTHER, kind="twin"),
            make_run(
                make_cause(severity="warning"),
                make_cause("learning rate too high", "confirm"),
                kind="twin",
            ),
            make_run(kind="twin", failed="it raised"),
        ]
    )

    (silence,) = report.silence
    assert (silence.runs, silence.errors, silence.confirms, silence.warnings) == (3, 1, 1, 1)
    assert [figure.rate.count for figure in report.figures] == [1, 1]
    (cause, _) = sorted(report.causes, key=lambda c: -sum(c.elsewhere.values()))
    assert cause.right == 0
    assert not report.passed


def test_causes_are_counted_as_right_or_elsewhere():
    report = score(
        [
            make_run(make_cause()),
            make_run(make_cause(), right=("learning rate too high",), name="rate"),
        ]
    )

    (cause,) = report.causes
    assert (cause.fault, cause.right, cause.elsewhere) == ("dead units", 1, {"rate": 1})


def test_report_fails_only_if_an_interval_excludes_the_target():
    few = score([make_run(), *[make_run(make_cause())] * 11])
    many = score([*[make_run()] * 30, *[make_run(make_cause())] * 70])

    assert few.passed
    assert not many.passed
    assert score([make_run(make_cause())] * 100).passed


def test_report_with_different_weights_never_passes():
    assert score([make_run(make_cause(), has_same_bits=True)]).passed
    assert not score(
        [make_run(make_cause(), has_same_bits=False)] + [make_run(make_cause())] * 50
    ).passed


def test_baselines_are_scored_only_on_monitored_runs():
    report = score(
        [
            make_run(make_cause(), alarms={"loss spike": 3}),
            make_run(make_cause(), alarms={}),
            make_run(make_cause()),
            make_run(kind="healthy", alarms={"loss spike": 1}),
        ]
    )

    spike = next(b for b in report.baselines if b.name == "loss spike")
    assert (spike.caught.count, spike.caught.total) == (1, 2)
    assert (spike.false.count, spike.false.total) == (1, 1)
    assert score([make_run(make_cause())]).baselines == ()


def test_report_page_and_lines_show_what_is_wrong():
    runs = [
        make_run(make_cause()),
        make_run(OTHER),
        make_run(make_cause(step=50)),
        make_run(OTHER, kind="healthy", number=18, name="wide"),
        make_run(make_cause(), has_same_bits=False),
        make_run(failed="it raised"),
    ]

    lines = [run_line(result) for result in runs]
    assert lines[0] is None
    words = [line.plain[:14].strip() for line in lines[1:]]
    assert words == ["missed", "wrong step", "false error", "weights differ", "failed"]
    expected = " or ".join(f"'{cause}'" for cause in runs[1].right)
    assert f"expected {expected}, reported" in lines[1].plain
    console = Console(width=200, file=io.StringIO())
    console.print(report_page(score(runs)))
    page = console.file.getvalue()
    assert "learning rate too high" in page
    assert "faults detected" in page
    assert math.isnan(score([make_run(OTHER)]).faults[0].late)
