"""Non-finite gradients of a finite loss (TRACE-8)."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.diagnosis import diagnose
from sluice.trace.report.replay.abnormal import first_abnormal
from sluice.trace.rules.library import judge
from tests.support.traced.small_programs import fault_severities, random_rows, train_step
from tests.support.traced.unusual_models import mlp, rows


def make_regression(loss_of, *, steps=4):
    def program():
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x = random_rows(16)
        for _ in range(steps):
            train_step(optimizer, loss_of(model(x), x.sum(1)))

    return program


class DividedByNorm(nn.Module):
    """Divides a sum by its norm, which has no derivative at 0."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 4, padding_idx=0)
        self.phi, self.head = nn.Linear(4, 4, bias=False), nn.Linear(4, 2)

    def forward(self, ids):
        sums = self.phi(self.table(ids)).sum(1)
        return self.head(sums / (sums.square().sum(-1, keepdim=True).sqrt() + 1e-8))


def test_weights_corrupted_by_one_step_reveal_a_nonfinite_gradient(trace_of):
    """The small gradients sampled right after each backward pass are finite."""

    def program():
        model = DividedByNorm()
        optimizer = torch.optim.Adam(model.parameters())
        ids = torch.randint(1, 5, (6, 8, 3), generator=torch.Generator().manual_seed(1))
        ids[3, 2] = 0  # an empty row in the fourth batch
        for batch in ids:
            train_step(optimizer, F.cross_entropy(model(batch), batch[:, 0] % 2))

    trace = trace_of(program)
    (first, *_) = [f for f in judge(trace) if f.severity == "error"]

    assert (first.fault, first.step) == ("non-finite gradient", 4)
    assert (first_abnormal(trace).step, first_abnormal(trace).tensor) == (
        4,
        "gradient of DividedByNorm.phi.weight",
    )


def test_optimizers_that_never_step_are_not_inspected(trace_of):
    idle = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1)
    idle.param_groups[0]["params"][0].grad = torch.full((2,), torch.nan)

    assert not fault_severities(trace_of(make_regression(lambda out, y: F.mse_loss(out[:, 0], y))))


def test_skipping_every_step_does_not_hide_a_nonfinite_gradient(trace_of):
    def program():
        model, x = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 1)), random_rows(16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(5):
            optimizer.zero_grad()
            out = model(x)[:, 0]
            torch.where(out > 0, out, (out - out.detach()).sqrt()).mean().backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if torch.isfinite(norm):
                optimizer.step()

    trace = trace_of(program)
    (first, *_) = judge(trace)

    assert trace.num_steps == 0
    assert (first.fault, first.severity) == ("non-finite gradient", "error")
    assert "Sequential.1.bias" in first.what


def root_cause_list(trace):
    return [(d.fault, d.finding.severity, d.step) for d in diagnose(judge(trace))]


@pytest.mark.parametrize(("fault_step", "raises_error"), [(20, False), (121, False), (121, True)])
def test_the_first_nonfinite_gradient_is_reported_before_clipping_spreads_it(
    trace_of, fault_step, raises_error
):
    """After the first steps, the norm read by the clipping reveals the fault."""

    def program():
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters())
        for step in range(fault_step + 10):
            x, y = rows()
            if step == fault_step:
                x[1] = x[0]
            hidden = model[1](model[0](x))
            distance = (hidden[0] - hidden[1]).pow(2).sum().sqrt()
            optimizer.zero_grad()
            (F.cross_entropy(model[2](hidden), y) + 0.01 * distance).backward()
            try:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=raises_error)
            except RuntimeError:
                return
            optimizer.step()

    trace = trace_of(program)
    (finding,) = (f for f in judge(trace) if f.fault == "non-finite gradient")

    assert root_cause_list(trace)[0] == ("non-finite gradient", "error", fault_step + 1)
    assert "2 of 4 parameters" in finding.what
    assert "Linear.bias" in finding.what
