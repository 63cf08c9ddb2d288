"""Reports on incomplete traces, and on faults that several networks share (TRACE-16)."""

from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.attach import active_tracer, traced
from sluice.trace.report.replay.page import replay_page
from sluice.trace.report.trace_report import format_report, report_traces
from sluice.trace.settings import TraceSettings
from sluice.trace.trace_reader import read_trace


def train(steps, x):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), x[:, :2].argmax(1)).backward()
        optimizer.step()


def test_the_report_of_a_stopped_trace_does_not_claim_success(tmp_path):
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
    with traced(tmp_path, TraceSettings(), print_line=[].append):
        train(3, x)
        active_tracer().run_safely(lambda: 1 / 0)
        train(3, x)

    (report,) = report_traces(tmp_path)
    text = format_report(report)

    assert report.is_cut_off
    assert "tracing stopped before the program ended" in text
    assert "steps after 3 were not checked" in text
    assert "no problem found" not in text


def test_the_report_of_a_complete_trace_without_findings_states_no_problem(tmp_path):
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
    with traced(tmp_path, TraceSettings()):
        train(3, x)

    (report,) = report_traces(tmp_path)

    assert not report.is_cut_off
    assert "no problem found" in format_report(report)


def test_a_fault_shared_by_several_networks_is_reported_once(tmp_path):
    x = torch.randn(320, 8, generator=torch.Generator().manual_seed(0))
    x[:, 4] = 0
    with traced(tmp_path, TraceSettings()):
        for _ in range(3):
            train(40, x)

    (report,) = report_traces(tmp_path)
    (diagnosis,) = [d for d in report.diagnoses if d.fault == "constant column"]

    assert len(diagnosis.findings) > 1
    assert "see:  sluice explain constant-column" in format_report(report)
    assert format_report(report).count("column 4 of 8 is 0") == len(
        {f.what for f in diagnosis.findings}
    )


def test_a_training_without_recorded_steps_is_not_reported_as_healthy(tmp_path):
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
    with traced(tmp_path, TraceSettings()):
        weights = torch.zeros(8, 2, requires_grad=True)
        model = nn.Linear(8, 2)
        F.cross_entropy(model(x) + x @ weights, x[:, :2].argmax(1)).backward()

    (report,) = report_traces(tmp_path)

    assert "no optimizer step was recorded: nothing can be checked" in format_report(report)
    assert "no problem" not in format_report(report)


def make_rows():
    return torch.randn(32, 8, generator=torch.Generator().manual_seed(0))


def trace_failed_program(error, out):
    """Trace three steps and an exception after them; return the folder."""

    def program():
        train(3, make_rows())
        raise error

    with suppress(type(error)), traced(out, TraceSettings()) as folder:
        program()
    return folder


@pytest.mark.parametrize(
    ("error", "ending", "message", "fix"),
    [
        (
            ValueError("of the program\nitself"),
            "failed",
            "ValueError: of the program itself",
            "trace",
        ),
        (MemoryError(), "failed", "MemoryError", "Halve the batch size"),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."),
            "failed",
            "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.",
            "Halve the batch size",
        ),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to ..."),
            "failed",
            "RuntimeError: DefaultCPUAllocator: can't allocate memory",
            "Halve the batch size",
        ),
        (KeyboardInterrupt(), "interrupted", "KeyboardInterrupt", "Let the program finish"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_the_report_of_a_failed_program_states_its_exception_and_step(
    tmp_path, error, ending, message, fix
):
    folder = trace_failed_program(error, tmp_path)

    (report,) = report_traces(tmp_path)
    page = replay_page(read_trace(folder), report.diagnoses)

    assert report.conclusion.ending == ending
    for text in (format_report(report), page.replace("&#x27;", "'")):
        assert f"{ending} at step 4, after 3 steps: {message}" in text
        assert fix in text
        assert "o problem" not in text


def test_the_report_of_a_trace_without_end_does_not_claim_success(tmp_path):
    with traced(tmp_path, TraceSettings(flush_s=0)) as folder:
        train(3, make_rows())
        (report,) = report_traces(tmp_path)
        page = replay_page(read_trace(folder), report.diagnoses)

    assert "the trace has no end record after step 3" in format_report(report)
    assert "137 is SIGKILL" in format_report(report)
    assert "o problem" not in format_report(report) + page


def test_an_exit_with_code_0_is_a_normal_end(tmp_path):
    trace_failed_program(SystemExit(0), tmp_path)

    assert report_traces(tmp_path)[0].conclusion.ending == "ended"


def test_the_page_of_a_stopped_trace_does_not_claim_success(tmp_path):
    with traced(tmp_path, TraceSettings(), print_line=[].append) as folder:
        train(3, make_rows())
        active_tracer().run_safely(lambda: 1 / 0)

    page = replay_page(read_trace(folder), ())

    assert "tracing stopped before the program ended" in page
    assert "o problem" not in page


def test_the_report_lists_checked_and_unchecked_evidence(tmp_path):
    with traced(tmp_path, TraceSettings()):
        train(3, make_rows())

    text = format_report(report_traces(tmp_path)[0])

    assert "checked:     the order of events in 3 steps; gradients and updates in 3 steps" in text
    assert "not checked: validation and overfitting (no loss function was called under" in text
