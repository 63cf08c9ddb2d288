"""Losses that jump and never recover (TRACE-9)."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.diagnosis import diagnose
from sluice.trace.rules._helpers.loss_jumps import LossJumpSettings, find_loss_jump
from sluice.trace.rules.library import judge

CHANGE_STEP = 120


def root_cause_list(trace):
    return [(d.finding.fault, d.finding.severity, d.finding.step) for d in diagnose(judge(trace))]


class ChangingTraining:
    """Trains a small network whose learning rate, gradients or targets change at some step."""

    def __init__(
        self,
        steps=240,
        new_rate=None,
        until=10**6,
        gradient_scale=1.0,
        target_scale=1.0,
        restarts=False,
    ):
        self.steps, self.new_rate, self.until = steps, new_rate, until
        self.gradient_scale, self.target_scale, self.restarts = (
            gradient_scale,
            target_scale,
            restarts,
        )

    def __call__(self):
        torch.manual_seed(0)
        weights = torch.randn(12)
        model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        for step in range(1, self.steps + 1):
            is_changed = CHANGE_STEP <= step < self.until
            if self.restarts:
                optimizer.param_groups[0]["lr"] = 0.02 * (1 - step % 60 / 60) + 1e-5
            elif self.new_rate is not None:
                optimizer.param_groups[0]["lr"] = self.new_rate if is_changed else 0.02
            x = torch.randn(32, 12)
            y = torch.tanh(x @ weights) * (self.target_scale if is_changed else 1.0)
            optimizer.zero_grad()
            F.mse_loss(model(x)[:, 0], y).backward()
            if is_changed and self.gradient_scale != 1.0:
                for parameter in model.parameters():
                    parameter.grad.mul_(self.gradient_scale)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0 if self.gradient_scale == 1.0 else 1e9)
            optimizer.step()


@pytest.mark.parametrize("new_rate", [20.0, 200.0])
def test_a_raised_learning_rate_is_the_cause(trace_of, new_rate):
    ((fault, severity, step), *_) = root_cause_list(
        trace := trace_of(ChangingTraining(new_rate=new_rate))
    )
    (found,) = [f for f in judge(trace) if f.fault == "learning rate too high"]

    assert (fault, severity) == ("learning rate too high", "error")
    assert CHANGE_STEP <= step <= CHANGE_STEP + 2
    assert f"from 0.02 to {new_rate:.3g}" in found.what


@pytest.mark.parametrize(
    "changes",
    [
        {"new_rate": 2000.0, "until": CHANGE_STEP + 2},
        {"gradient_scale": 1e5, "until": CHANGE_STEP + 2},
    ],
)
def test_one_step_that_overshoots_is_the_cause(trace_of, changes):
    ((fault, severity, step), *_) = root_cause_list(trace_of(ChangingTraining(**changes)))

    assert (fault, severity) == ("learning rate too high", "error")
    assert CHANGE_STEP <= step <= CHANGE_STEP + 2


@pytest.mark.parametrize(
    "healthy",
    [
        {},
        {"new_rate": 0.1},  # stable at five times the learning rate
        {"target_scale": 4.0},  # other targets: the loss rises, the weights follow slowly
        {"target_scale": 4.0, "new_rate": 0.05},
        {"target_scale": 10.0, "until": CHANGE_STEP + 40},  # the loss recovers
        {"restarts": True},
    ],
)
def test_a_loss_that_rises_for_another_reason_is_not_an_error(trace_of, healthy):
    assert "error" not in {
        severity for _, severity, _ in root_cause_list(trace_of(ChangingTraining(**healthy)))
    }


def test_units_that_die_are_reported_at_the_step_of_the_loss_jump(trace_of):
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

    assert root_cause_list(trace_of(program))[0] == ("dead units", "error", 300)


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


@pytest.mark.parametrize("jump_step", [290, 301, 312])
def test_a_jump_of_the_rate_is_recorded_even_if_the_rate_changes_often(trace_of, jump_step):
    def program():
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(1, 401):
            optimizer.param_groups[0]["lr"] = (1e-6 if step < jump_step else 1e-3) * (
                1 - step / 500
            )
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()

    jumps = [r.step for r in trace_of(program).rates if jump_step <= r.step and max(r.rates) > 1e-5]

    assert jumps[0] < jump_step + 20
