"""Schedules that end before the training does (TRACE-11)."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.rules.library import judge
from sluice.trace.rules.schedules.schedule_ends_early import SCHEDULE_ENDS_EARLY
from tests.support.traced.small_programs import (
    classifier,
    fault_severities,
    random_rows,
    train_step,
)


def make_program(make_callbacks, *, epochs=6, batches=30):
    """Return a training that calls one function after each batch and one after each epoch."""

    def program():
        model, x = nn.Linear(6, 1), random_rows(16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        on_batch, on_epoch = make_callbacks(optimizer, epochs * batches)
        for _ in range(epochs):
            for _ in range(batches):
                train_step(optimizer, F.mse_loss(model(x)[:, 0], x.sum(1)))
                on_batch()
            on_epoch()

    return program


def halve_every(optimizer, every):
    calls = itertools.count(1)

    def halve():
        if next(calls) % every == 0:
            optimizer.param_groups[0]["lr"] /= 2

    return halve


def no_op():
    """Do nothing, in place of a scheduler step."""


@pytest.mark.parametrize("is_wrong", [True, False])
def test_a_learning_rate_halved_per_batch_instead_of_per_epoch_is_reported(trace_of, is_wrong):
    def make_callbacks(optimizer, _):
        halve = halve_every(optimizer, 3)
        return (halve, no_op) if is_wrong else (no_op, halve)

    found = fault_severities(trace_of(make_program(make_callbacks)))
    assert (("schedule ends early", "error") in found) is is_wrong


def test_the_finding_states_the_rate_threshold_of_the_settings(trace_of):
    trace = trace_of(make_program(lambda optimizer, _: (halve_every(optimizer, 3), no_op)))
    settings = SCHEDULE_ENDS_EARLY.settings.model_copy(update={"max_low_rate_ratio": 0.05})
    (default,) = SCHEDULE_ENDS_EARLY(trace)
    (higher,) = replace(SCHEDULE_ENDS_EARLY, settings=settings)(trace)

    assert "the rate is at most 0.01 of its maximum" in default.what
    assert "the rate is at most 0.05 of its maximum" in higher.what


def test_a_schedule_with_too_few_scheduler_steps_is_not_reported(trace_of):
    def make_callbacks(optimizer, _):
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        calls = itertools.count()
        return lambda: next(calls) % 10 and schedule.step(), no_op

    trace = trace_of(make_program(make_callbacks))
    settings = SCHEDULE_ENDS_EARLY.settings.model_copy(update={"min_calls_per_step": 0.95})

    assert SCHEDULE_ENDS_EARLY(trace)
    assert not replace(SCHEDULE_ENDS_EARLY, settings=settings)(trace)


@pytest.mark.parametrize("decay_share", [0.1, 1.0])
def test_a_schedule_at_its_floor_from_the_first_epochs_on_is_reported(trace_of, decay_share):
    def program():
        model, steps = classifier(), 200
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        decay_steps = int(decay_share * steps)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer,
            lambda i: 0.03 + 0.97 * (1 + math.cos(math.pi * min(i, decay_steps) / decay_steps)) / 2,
        )
        x, y = random_rows(64), torch.arange(64) % 3
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            schedule.step()

    found = [f for f in judge(trace_of(program)) if f.fault == "schedule ends early"]

    assert [f.severity for f in found] == (["error"] if decay_share < 1 else [])
    assert all("the rate is 3% of its maximum" in f.what for f in found)
