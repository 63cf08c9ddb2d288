"""What looks like a fault of data, texts or losses and is none has no error (TRACE-2, 3, 14)."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.bench.tracer.data import digits
from sluice.trace.dependence import dependence
from sluice.trace.diagnosis import diagnose
from sluice.trace.rules.library import judge
from tests.support.traced.near_misses import NEAR_MISSES

QUIET = {"missing_numbers_filled_inside": "non-finite input"}
"""Worth a look, and no more."""


COSTLY = (
    "pairs_of_views",
    "few_of_one_class",
    "two_tasks_on_one_batch",
    "training_accuracy_beside_validation",
    "negative_correlation",
    "autoencoder",
    "teacher",
    "noise_on_the_training_rows",
    "padded_on_the_left",
    "sums_over_rows",
)


def marked(program):
    marks = pytest.mark.exhaustive if program.__name__ in COSTLY else ()
    return pytest.param(program, marks=marks, id=program.__name__)


@pytest.mark.parametrize("program", [marked(program) for program in NEAR_MISSES])
def test_a_near_miss_has_no_error(trace_of, program):
    trace = trace_of(program)

    assert trace.notes == ()
    found = {(f.fault, f.severity) for f in judge(trace)}
    quiet = QUIET.get(program.__name__)
    assert found == ({(quiet, "warning")} if quiet else set())


def steps(loss_of, *, num=6, outputs=10):
    """Return a program of a few steps on digits with a loss of its own."""

    def program():
        (x, y), _ = (d.tensors for d in digits("mlp", 1))
        model = nn.Linear(64, outputs)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i in range(num):
            optimizer.zero_grad()
            loss_of(model(x[i * 32 : i * 32 + 32]), y[i * 32 : i * 32 + 32]).backward()
            optimizer.step()

    return program


WRONG = {
    "softmax": (lambda out, y: F.cross_entropy(out.softmax(1), y), "loss on wrong domain"),
    "softmax of rows": (
        lambda out, y: F.cross_entropy(out.softmax(1).reshape(-1, 10).float(), y),
        "loss on wrong domain",
    ),
    "exponentials of a log softmax": (
        lambda out, y: nn.CrossEntropyLoss()(out.log_softmax(1).exp(), y),
        "loss on wrong domain",
    ),
    "sigmoid": (lambda out, y: F.cross_entropy(out.sigmoid(), y), "loss on wrong domain"),
    "logits as log-probabilities": (
        lambda out, y: F.nll_loss(out * 4, y),
        "loss on wrong domain",
    ),
    "probabilities as logs": (
        lambda out, y: F.kl_div(out.softmax(1), F.one_hot(y, 10).float(), reduction="batchmean"),
        "loss on wrong domain",
    ),
    "sigmoid twice": (
        lambda out, y: nn.BCEWithLogitsLoss()(out[:, 0].sigmoid(), (y % 2).float()),
        "loss on wrong domain",
    ),
    "targets 1 and 2": (
        lambda out, y: F.binary_cross_entropy_with_logits(out[:, 0], (y % 2).float() + 1),
        "id out of range",
    ),
    "nothing supervised": (
        lambda out, y: F.cross_entropy(out, torch.full_like(y, -100)),
        "nothing supervised",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_loss_is_an_error_at_its_first_step(trace_of, name):
    loss_of, fault = WRONG[name]

    first = diagnose(judge(trace_of(steps(loss_of))))[0].finding

    assert first.severity == "error"

    assert (first.fault, first.step) == (fault, 1)


RIGHT = {
    "log softmax twice": lambda out, y: F.cross_entropy(out.log_softmax(1), y),
    "likelihood": lambda out, y: F.nll_loss(torch.log(out.softmax(1) + 1e-6), y),
    "smoothed": lambda out, y: F.cross_entropy(out, y, label_smoothing=0.1),
    "soft targets": lambda out, y: F.cross_entropy(out, F.one_hot(y, 10).float() * 0.9 + 0.01),
    "probability": lambda out, y: F.binary_cross_entropy(out[:, 0].sigmoid(), (y % 2).float()),
    "column against column": lambda out, y: F.mse_loss(out[:, :1], y[:, None] / 9.0),
    "one target for all": lambda out, _: F.mse_loss(out, torch.zeros(1, 10)),
    "by hand": lambda out, y: -out.log_softmax(1)[torch.arange(len(y)), y].mean(),
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_loss_has_no_finding(trace_of, name):
    assert judge(trace_of(steps(RIGHT[name]))) == ()


def test_wide_logits_at_the_start_are_worth_a_look(trace_of):
    found = judge(trace_of(steps(lambda out, y: F.cross_entropy(out * 200, y))))

    assert ("logits extreme", "warning") in {(f.fault, f.severity) for f in found}


def test_ids_that_a_loss_refuses_are_told_of_a_program_without_a_step(trace_of, tmp_path):
    from sluice.trace.reading import find_traces, read_trace

    with pytest.raises(IndexError):
        trace_of(steps(lambda out, y: F.cross_entropy(out, y), outputs=8))

    trace = read_trace(find_traces(tmp_path / "traces")[0])
    (finding,) = judge(trace)
    assert trace.num_steps == 0
    assert (finding.fault, finding.severity, finding.step) == ("id out of range", "error", 1)
    assert (finding.evidence["largest"], finding.evidence["num_allowed"]) == (9, 8)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is:DeprecationWarning")
def test_loss_functions_can_be_scripted_and_compiled_under_a_trace(trace_of):
    def loss_of(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(out, y)

    def both():
        out, y = torch.randn(8, 3, requires_grad=True), torch.arange(8) % 3
        scripted = torch.jit.script(nn.CrossEntropyLoss())
        compiled = torch.compile(loss_of, backend="eager", fullgraph=True)
        assert torch.equal(scripted(out, y), loss_of(out, y))
        assert torch.equal(compiled(out, y), loss_of(out, y))

    trace = trace_of(both)

    assert trace.notes == ()


def test_dependence_is_seen_where_it_is_and_not_where_it_is_not():
    drawn = torch.Generator().manual_seed(5)
    x = torch.randn(512, 6, generator=drawn)
    noise = torch.randn(512, generator=drawn)

    assert dependence(x, (0.4 * x[:, 3] + noise).tolist(), is_class=False) > 4
    assert dependence(x, (x[:, 0] * x[:, 1] > 0).double().tolist(), is_class=True) > 3
    assert dependence(x, noise.tolist(), is_class=False) < 3
    assert dependence(x, x[:, 0].mul(0).tolist(), is_class=False) == 0
