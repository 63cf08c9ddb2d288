"""What runs of the fault benchmark come to (TRACE-16)."""

import io
import math

import pytest
from rich.console import Console

from sluice.bench.tracer.result import ReportedCause, RunResult
from sluice.bench.tracer.scoring import score
from sluice.bench.tracer.table import report_page, run_line


def answer(fault="dead units", severity="error", step=5):
    return ReportedCause(
        fault=fault, severity=severity, step=step, confidence=0.9, what="", explains=()
    )


def run(*answers, kind="fault", **fields):
    given = {
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
        "answers": answers,
    }
    return RunResult(**(given | fields))


OTHER = answer("learning rate too high")


@pytest.mark.parametrize(
    ("answers", "place"),
    [
        ((answer(),), 1),
        ((OTHER, answer()), 2),
        ((OTHER,), None),
        ((answer(severity="confirm"),), None),
        ((answer(severity="warning"), answer(severity="error")), 2),
        ((), None),
    ],
)
def test_only_an_error_with_the_right_cause_counts(answers, place):
    assert run(*answers).correct_rank == place


def test_a_question_is_right_where_only_intent_decides():
    assert run(answer(severity="confirm"), needs="confirm").correct_rank == 1
    assert run(answer(severity="warning"), needs="confirm").correct_rank is None


@pytest.mark.parametrize(
    ("step", "in_time"), [(3, False), (4, True), (5, True), (8, True), (9, False)]
)
def test_a_verdict_names_a_step_near_the_first_faulty_one(step, in_time):
    assert run(answer(step=step)).is_in_time is in_time


def test_shares_count_every_faulty_run_also_one_that_failed():
    report = score([run(answer()), run(OTHER, answer()), run(OTHER), run(failed="it raised")])

    figures = {figure.name: figure.rate for figure in report.figures}
    assert (figures["faults detected"].count, figures["faults detected"].total) == (2, 4)
    assert figures["correct cause first"].count == 1
    assert figures["correct cause among the first three"].count == 2
    (fault,) = report.faults
    assert fault.instead == {"error: learning rate too high": 2, "failed: it raised": 1}
    assert fault.late == 0
    assert not report.passed


def test_healthy_runs_are_flagged_by_severity_and_a_failed_one_is_left_out():
    report = score(
        [
            run(kind="twin"),
            run(OTHER, kind="twin"),
            run(
                answer(severity="warning"), answer("learning rate too high", "confirm"), kind="twin"
            ),
            run(kind="twin", failed="it raised"),
        ]
    )

    (silence,) = report.silence
    assert (silence.runs, silence.errors, silence.confirms, silence.warnings) == (3, 1, 1, 1)
    assert [figure.rate.count for figure in report.figures] == [1, 1]
    (cause, _) = sorted(report.causes, key=lambda c: -sum(c.elsewhere.values()))
    assert cause.right == 0
    assert not report.passed


def test_causes_tell_right_from_elsewhere():
    report = score([run(answer()), run(answer(), right=("learning rate too high",), name="rate")])

    (cause,) = report.causes
    assert (cause.fault, cause.right, cause.elsewhere) == ("dead units", 1, {"rate": 1})


def test_a_figure_is_missed_when_its_interval_does_not_reach_the_target():
    few = score([run(), *[run(answer())] * 11])
    many = score([*[run()] * 30, *[run(answer())] * 70])

    assert few.passed
    assert not many.passed
    assert score([run(answer())] * 100).passed


def test_other_weights_never_pass():
    assert score([run(answer(), has_same_bits=True)]).passed
    assert not score([run(answer(), has_same_bits=False)] + [run(answer())] * 50).passed


def test_baselines_are_counted_on_runs_that_they_watched():
    report = score(
        [
            run(answer(), alarms={"loss spike": 3}),
            run(answer(), alarms={}),
            run(answer()),
            run(kind="healthy", alarms={"loss spike": 1}),
        ]
    )

    spike = next(b for b in report.baselines if b.name == "loss spike")
    assert (spike.caught.count, spike.caught.total) == (1, 2)
    assert (spike.false.count, spike.false.total) == (1, 1)
    assert score([run(answer())]).baselines == ()


def test_the_page_and_the_lines_name_what_is_wrong():
    runs = [
        run(answer()),
        run(OTHER),
        run(answer(step=50)),
        run(OTHER, kind="healthy", number=18, name="wide"),
        run(answer(), has_same_bits=False),
        run(failed="it raised"),
    ]

    lines = [run_line(one) for one in runs]
    assert lines[0] is None
    words = [line.plain[:14].strip() for line in lines[1:]]
    assert words == ["missed", "wrong step", "false error", "weights differ", "failed"]
    console = Console(width=200, file=io.StringIO())
    console.print(report_page(score(runs)))
    page = console.file.getvalue()
    assert "learning rate too high" in page
    assert "faults detected" in page
    assert math.isnan(score([run(OTHER)]).faults[0].late)
