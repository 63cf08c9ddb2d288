"""Losses that diverge from the start (TRACE-9)."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.diagnosis import diagnose
from sluice.trace.records.step_statistics import StepScalars
from sluice.trace.rules.library import judge
from sluice.trace.rules.losses.lr_divergence import LR_DIVERGENCE
from tests.support.traced.unusual_models import rows


def root_cause_list(trace):
    return [(d.fault, d.finding.severity, d.step) for d in diagnose(judge(trace))]


def train_with_high_rate():
    model = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
    for _ in range(30):
        x, y = rows()
        optimizer.zero_grad()
        F.mse_loss(model(x)[:, 0], 10.0 * y).backward()
        optimizer.step()


def test_a_diverging_loss_has_one_root_cause(trace_of):
    ((fault, severity, step), *others) = root_cause_list(trace_of(train_with_high_rate))

    assert (fault, severity) == ("learning rate too high", "error")
    assert step <= 4
    assert not [other for other in others if other[1] == "error"]


@pytest.mark.parametrize("stricter", [{"min_finite_rise": 1e38}, {"max_steps_after_rise": 0}])
def test_stricter_thresholds_of_rise_and_update_remove_the_finding(trace_of, stricter):
    trace = trace_of(train_with_high_rate)
    (finding,) = LR_DIVERGENCE(trace)
    # Updates before the rise must not count in this test, so statistics begin with the rise.
    late = trace.model_copy(
        update={"statistics": tuple(s for s in trace.statistics if s.step > finding.step)}
    )
    settings = LR_DIVERGENCE.settings.model_copy(update=stricter)

    assert LR_DIVERGENCE(late)
    assert not replace(LR_DIVERGENCE, settings=settings)(late)


@pytest.mark.parametrize(("num_low", "is_found"), [(0, True), (2, True), (3, False), (10, False)])
def test_a_few_low_losses_after_a_divergence_are_no_recovery(trace_of, num_low, is_found):
    losses = [1.0, 1.0, *[1e6, math.nan] * 20]
    losses[30 : 30 + num_low] = [1.0] * num_low  # of the last 20
    scalars = tuple(StepScalars(step=i + 1, losses=(v,)) for i, v in enumerate(losses))

    trace = trace_of(train_with_high_rate).model_copy(update={"scalars": scalars})

    assert bool(LR_DIVERGENCE(trace)) is is_found


def test_a_small_minimum_rise_also_moves_the_step_of_the_finding(trace_of):
    losses = [1.0, 1.0, 1.0, *[1.8] * 10]
    scalars = tuple(StepScalars(step=i + 1, losses=(v,)) for i, v in enumerate(losses))
    thresholds = {"min_rise": 1.5, "min_rise_at_end": 1.5, "min_finite_rise": 1.5}
    settings = LR_DIVERGENCE.settings.model_copy(update=thresholds)

    trace = trace_of(train_with_high_rate).model_copy(update={"scalars": scalars})
    (finding,) = replace(LR_DIVERGENCE, settings=settings)(trace)

    assert finding.step == 4
