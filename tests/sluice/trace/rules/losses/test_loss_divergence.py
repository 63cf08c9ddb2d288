"""Losses that jump and never recover (TRACE-9)."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.diagnosis import diagnose
from sluice.trace.rules._helpers.loss_jumps import LossJumpSettings, find_loss_jump
from sluice.trace.rules.library import judge

AT = 120


def answers(trace):
    return [(d.finding.fault, d.finding.severity, d.finding.step) for d in diagnose(judge(trace))]


class Loop:
    """A perceptron whose learning rate, gradients or targets change at some step."""

    def __init__(self, steps=240, rate=None, until=10**6, gradient=1.0, rows=1.0, restarts=False):
        self.steps, self.rate, self.until = steps, rate, until
        self.gradient, self.rows, self.restarts = gradient, rows, restarts

    def __call__(self):
        torch.manual_seed(0)
        weights = torch.randn(12)
        model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        for step in range(1, self.steps + 1):
            is_odd = AT <= step < self.until
            if self.restarts:
                optimizer.param_groups[0]["lr"] = 0.02 * (1 - step % 60 / 60) + 1e-5
            elif self.rate is not None:
                optimizer.param_groups[0]["lr"] = self.rate if is_odd else 0.02
            x = torch.randn(32, 12)
            y = torch.tanh(x @ weights) * (self.rows if is_odd else 1.0)
            optimizer.zero_grad()
            F.mse_loss(model(x)[:, 0], y).backward()
            if is_odd and self.gradient != 1.0:
                for parameter in model.parameters():
                    parameter.grad.mul_(self.gradient)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0 if self.gradient == 1.0 else 1e9)
            optimizer.step()


@pytest.mark.parametrize("rate", [20.0, 200.0])
def test_a_raised_learning_rate_is_the_cause(trace_of, rate):
    ((fault, severity, step), *_) = answers(trace := trace_of(Loop(rate=rate)))
    (found,) = [f for f in judge(trace) if f.fault == "learning rate too high"]

    assert (fault, severity) == ("learning rate too high", "error")
    assert AT <= step <= AT + 2
    assert f"from 0.02 to {rate:.3g}" in found.what


@pytest.mark.parametrize(
    "odd", [{"rate": 2000.0, "until": AT + 2}, {"gradient": 1e5, "until": AT + 2}]
)
def test_one_step_that_overshoots_is_the_cause(trace_of, odd):
    ((fault, severity, step), *_) = answers(trace_of(Loop(**odd)))

    assert (fault, severity) == ("learning rate too high", "error")
    assert AT <= step <= AT + 2


@pytest.mark.parametrize(
    "healthy",
    [
        {},
        {"rate": 0.1},  # stable at five times the learning rate
        {"rows": 4.0},  # other targets: the loss rises, the weights follow slowly
        {"rows": 4.0, "rate": 0.05},
        {"rows": 10.0, "until": AT + 40},  # the loss recovers
        {"restarts": True},
    ],
)
def test_a_loss_that_rises_for_another_reason_is_not_an_error(trace_of, healthy):
    assert "error" not in {severity for _, severity, _ in answers(trace_of(Loop(**healthy)))}


def test_neurons_that_die_are_reported_at_the_step_of_the_loss_jump(trace_of):
    def program():
        torch.manual_seed(0)
        weights = torch.randn(12)
        model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        for step in range(1, 641):
            if step == 300:
                with torch.no_grad():
                    model[0].bias -= 100.0
            x = torch.randn(32, 12)
            optimizer.zero_grad()
            F.mse_loss(model(x)[:, 0], torch.tanh(x @ weights)).backward()
            optimizer.step()

    assert answers(trace_of(program))[0] == ("dead units", "error", 300)


def losses(*parts):
    """Return numbered losses; a part is a level and its number of losses."""
    values = [level + 0.1 * (i % 2) for level, num in parts for i in range(num)]
    return tuple(enumerate(values, start=1))


@pytest.mark.parametrize(
    ("parts", "step"),
    [
        ([(1.0, 40), (5.0, 40)], 41),
        ([(1.0, 40), (math.nan, 40)], 41),
        ([(1.0, 40), (1.2, 1), (1.0, 20), (5.0, 90)], 62),  # not the earlier, single outlier
        ([(1.0, 40), (5.0, 40), (1.0, 100)], None),  # the loss recovers
        ([(1.0, 40), (5.0, 100), (1.0, 20)], None),  # late
        ([(1.0, 10), (5.0, 40)], None),  # too few before
        ([(1.0, 40), (5.0, 10)], None),  # too few after
        ([(5.0, 40), (1.0, 40)], None),
    ],
)
def test_a_loss_jump_stays_above_all_losses_before_it(parts, step):
    found = find_loss_jump(losses(*parts), LossJumpSettings())

    assert (found and found.step) == step


@pytest.mark.parametrize("at", [290, 301, 312])
def test_a_jump_of_the_rate_is_recorded_even_if_the_rate_changes_often(trace_of, at):
    def program():
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(1, 401):
            optimizer.param_groups[0]["lr"] = (1e-6 if step < at else 1e-3) * (1 - step / 500)
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()

    jumps = [r.step for r in trace_of(program).rates if at <= r.step and max(r.rates) > 1e-5]

    assert jumps[0] < at + 20
