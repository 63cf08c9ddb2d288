"""What a report says of a trace that is not whole, and of what many networks share (TRACE-16)."""

from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.attach import _active, traced
from sluice.trace.reading import read_trace
from sluice.trace.replay.page import replay_page
from sluice.trace.report import as_text, report_on
from sluice.trace.settings import TraceSettings


def train(steps, x):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), x[:, :2].argmax(1)).backward()
        optimizer.step()


def test_a_trace_that_stopped_does_not_say_that_nothing_is_wrong(tmp_path):
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
    with traced(tmp_path, TraceSettings(), say=[].append):
        train(3, x)
        _active[-1].guard(lambda: 1 / 0)
        train(3, x)

    (report,) = report_on(tmp_path)
    text = as_text(report)

    assert report.is_cut_off
    assert "tracing stopped before the program ended" in text
    assert "what came after step 3 was not looked at" in text
    assert "nothing wrong was found" not in text


def test_a_whole_trace_without_a_finding_says_so(tmp_path):
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
    with traced(tmp_path, TraceSettings()):
        train(3, x)

    (report,) = report_on(tmp_path)

    assert not report.is_cut_off
    assert "nothing wrong was found" in as_text(report)


def test_what_several_networks_share_is_said_once(tmp_path):
    x = torch.randn(320, 8, generator=torch.Generator().manual_seed(0))
    x[:, 4] = 0
    with traced(tmp_path, TraceSettings()):
        for _ in range(3):
            train(40, x)

    (report,) = report_on(tmp_path)
    (diagnosis,) = [d for d in report.diagnoses if d.fault == "constant column"]

    assert len(diagnosis.findings) > 1
    assert as_text(report).count("column 4 of 8 is 0") == len({f.what for f in diagnosis.findings})


def test_a_training_of_which_no_step_was_seen_is_not_called_sound(tmp_path):
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
    with traced(tmp_path, TraceSettings()):
        weights = torch.zeros(8, 2, requires_grad=True)
        model = nn.Linear(8, 2)
        F.cross_entropy(model(x) + x @ weights, x[:, :2].argmax(1)).backward()

    (report,) = report_on(tmp_path)

    assert "no step was seen: of a training nothing can be said" in as_text(report)
    assert "nothing wrong" not in as_text(report)


def rows():
    return torch.randn(32, 8, generator=torch.Generator().manual_seed(0))


def ended_by(error, out):
    """Trace three steps and an exception after them; return the folder."""

    def program():
        train(3, rows())
        raise error

    with suppress(type(error)), traced(out, TraceSettings()) as folder:
        program()
    return folder


@pytest.mark.parametrize(
    ("error", "ending", "said", "fix"),
    [
        (
            ValueError("of the program\nitself"),
            "died",
            "ValueError: of the program itself",
            "trace",
        ),
        (MemoryError(), "died", "MemoryError", "halve the batch"),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."),
            "died",
            "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.",
            "halve the batch",
        ),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to ..."),
            "died",
            "RuntimeError: DefaultCPUAllocator: can't allocate memory",
            "halve the batch",
        ),
        (KeyboardInterrupt(), "interrupted", "KeyboardInterrupt", "to its end"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_a_program_that_died_is_told_with_what_and_when(tmp_path, error, ending, said, fix):
    folder = ended_by(error, tmp_path)

    (report,) = report_on(tmp_path)
    page = replay_page(read_trace(folder), report.diagnoses)

    assert report.conclusion.ending == ending
    for text in (as_text(report), page.replace("&#x27;", "'")):
        assert f"{ending} at step 4, after 3 steps: {said}" in text
        assert fix in text
        assert "othing wrong" not in text


def test_a_trace_without_an_end_does_not_say_that_nothing_is_wrong(tmp_path):
    with traced(tmp_path, TraceSettings(flush_s=0)) as folder:
        train(3, rows())
        (report,) = report_on(tmp_path)
        page = replay_page(read_trace(folder), report.diagnoses)

    assert "no end is recorded after step 3" in as_text(report)
    assert "137 is SIGKILL" in as_text(report)
    assert "othing wrong" not in as_text(report) + page


def test_an_exit_with_code_0_is_no_death(tmp_path):
    ended_by(SystemExit(0), tmp_path)

    assert report_on(tmp_path)[0].conclusion.ending == "ended"


def test_a_page_of_a_trace_that_stopped_does_not_say_that_nothing_is_wrong(tmp_path):
    with traced(tmp_path, TraceSettings(), say=[].append) as folder:
        train(3, rows())
        _active[-1].guard(lambda: 1 / 0)

    page = replay_page(read_trace(folder), ())

    assert "tracing stopped before the program ended" in page
    assert "othing wrong" not in page


def test_what_was_checked_and_what_was_not_is_said(tmp_path):
    with traced(tmp_path, TraceSettings()):
        train(3, rows())

    text = as_text(report_on(tmp_path)[0])

    assert "checked:     the order of events in 3 steps; gradients and updates in 3 steps" in text
    assert "not checked: validation and overfitting (no loss function was called under" in text
