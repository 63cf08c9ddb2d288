"""Misused loss functions, and correct ones (TRACE-2, TRACE-14)."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.bench.tracer.data import digits
from sluice.trace.diagnosis import diagnose
from sluice.trace.rules.library import judge


def make_program(loss_of, *, num=6, outputs=10):
    """Return a program of a few steps on digits with the given loss."""

    def program():
        (x, y), _ = (d.tensors for d in digits("mlp", 1))
        model = nn.Linear(64, outputs)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i in range(num):
            optimizer.zero_grad()
            loss_of(model(x[i * 32 : i * 32 + 32]), y[i * 32 : i * 32 + 32]).backward()
            optimizer.step()

    return program


MISUSED_LOSSES = {
    "softmax": (lambda out, y: F.cross_entropy(out.softmax(1), y), "logits-probability mix-up"),
    "softmax of rows": (
        lambda out, y: F.cross_entropy(out.softmax(1).reshape(-1, 10).float(), y),
        "logits-probability mix-up",
    ),
    "exponentials of a log softmax": (
        lambda out, y: nn.CrossEntropyLoss()(out.log_softmax(1).exp(), y),
        "logits-probability mix-up",
    ),
    "sigmoid": (lambda out, y: F.cross_entropy(out.sigmoid(), y), "logits-probability mix-up"),
    "logits as log-probabilities": (
        lambda out, y: F.nll_loss(out * 4, y),
        "logits-probability mix-up",
    ),
    "probabilities as logs": (
        lambda out, y: F.kl_div(out.softmax(1), F.one_hot(y, 10).float(), reduction="batchmean"),
        "logits-probability mix-up",
    ),
    "sigmoid twice": (
        lambda out, y: nn.BCEWithLogitsLoss()(out[:, 0].sigmoid(), (y % 2).float()),
        "logits-probability mix-up",
    ),
    "targets 1 and 2": (
        lambda out, y: F.binary_cross_entropy_with_logits(out[:, 0], (y % 2).float() + 1),
        "index out of range",
    ),
    "all targets ignored": (
        lambda out, y: F.cross_entropy(out, torch.full_like(y, -100)),
        "all targets ignored",
    ),
}


@pytest.mark.parametrize("name", MISUSED_LOSSES)
def test_a_misused_loss_function_is_an_error_at_its_first_step(trace_of, name):
    loss_of, fault = MISUSED_LOSSES[name]

    first = diagnose(judge(trace_of(make_program(loss_of))))[0].finding

    assert first.severity == "error"
    assert (first.fault, first.step) == (fault, 1)


CORRECT_LOSSES = {
    "log softmax twice": lambda out, y: F.cross_entropy(out.log_softmax(1), y),
    "likelihood": lambda out, y: F.nll_loss(torch.log(out.softmax(1) + 1e-6), y),
    "smoothed": lambda out, y: F.cross_entropy(out, y, label_smoothing=0.1),
    "soft targets": lambda out, y: F.cross_entropy(out, F.one_hot(y, 10).float() * 0.9 + 0.01),
    "probability": lambda out, y: F.binary_cross_entropy(out[:, 0].sigmoid(), (y % 2).float()),
    "column against column": lambda out, y: F.mse_loss(out[:, :1], y[:, None] / 9.0),
    "one target for all": lambda out, _: F.mse_loss(out, torch.zeros(1, 10)),
    "manual": lambda out, y: -out.log_softmax(1)[torch.arange(len(y)), y].mean(),
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("name", CORRECT_LOSSES)
def test_a_correct_loss_has_no_finding(trace_of, name):
    assert judge(trace_of(make_program(CORRECT_LOSSES[name]))) == ()


def test_class_ids_rejected_by_the_loss_are_reported_although_no_step_was_made(trace_of, tmp_path):
    from sluice.trace.trace_reader import find_traces, read_trace

    with pytest.raises(IndexError):
        trace_of(make_program(lambda out, y: F.cross_entropy(out, y), outputs=8))

    trace = read_trace(find_traces(tmp_path / "traces")[0])
    (finding,) = judge(trace)
    assert trace.num_steps == 0
    assert (finding.fault, finding.severity, finding.step) == ("index out of range", "error", 1)
    assert (finding.evidence["largest"], finding.evidence["num_allowed"]) == (9, 8)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is:DeprecationWarning")
def test_loss_functions_can_be_scripted_and_compiled_while_traced(trace_of):
    def loss_of(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(out, y)

    def program():
        out, y = torch.randn(8, 3, requires_grad=True), torch.arange(8) % 3
        scripted = torch.jit.script(nn.CrossEntropyLoss())
        compiled = torch.compile(loss_of, backend="eager", fullgraph=True)
        assert torch.equal(scripted(out, y), loss_of(out, y))
        assert torch.equal(compiled(out, y), loss_of(out, y))

    trace = trace_of(program)

    assert trace.notes == ()
