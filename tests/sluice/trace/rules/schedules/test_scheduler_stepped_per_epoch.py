"""Schedules for batches that are stepped once per epoch (TRACE-11)."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.rules.library import judge
from tests.support.traced.small_programs import fault_severities, random_rows, train_step


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


def no_op():
    """Do nothing, in place of a scheduler step."""


@pytest.mark.parametrize("is_wrong", [True, False])
@pytest.mark.parametrize("kind", ["cosine", "warmup"])
def test_a_schedule_for_batches_stepped_per_epoch_is_reported(trace_of, kind, is_wrong):
    def make_callbacks(optimizer, total):
        if kind == "cosine":
            scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)
        else:
            scheduler = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda i: min((i + 1) / 40, 1 - i / (2 * total))
            )
        return (no_op, scheduler.step) if is_wrong else (scheduler.step, no_op)

    found = fault_severities(trace_of(make_program(make_callbacks)))
    assert (("scheduler stepped per epoch", "error") in found) is is_wrong


def test_the_message_states_both_lengths_if_they_differ(trace_of):
    def make_callbacks(optimizer, total):
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total + 10)
        return no_op, schedule.step

    (found,) = [
        f
        for f in judge(trace_of(make_program(make_callbacks)))
        if f.fault == "scheduler stepped per epoch"
    ]

    assert "in 180 steps of its optimizer: its length of 190 steps is about the" in found.what
