"""What a report says of a trace that is not whole, and of what many networks share (TRACE-16)."""

import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.attach import _active, traced
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
