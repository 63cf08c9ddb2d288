"""Learning-rate schedulers that step before their optimizer (TRACE-11)."""

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR

from sluice.trace.rules.schedules.scheduler_before_optimizer import SCHEDULER_BEFORE_OPTIMIZER
from tests.support.traced.small_programs import random_rows, train_step

FAULT = "scheduler before optimizer"

pytestmark = pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step")


def make_program(order, *, turns=4, num_early_steps=0):
    """Return a program that calls ``optimizer`` and ``scheduler`` in this order in each turn."""

    def program():
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scheduler = ExponentialLR(optimizer, 0.9)
        for _ in range(num_early_steps):
            scheduler.step()
        for _ in range(turns):
            optimizer.zero_grad()
            model(random_rows(16)).square().mean().backward()
            for name in order:
                {"optimizer": optimizer, "scheduler": scheduler}[name].step()

    return program


def test_a_scheduler_that_steps_first_needs_confirmation(trace_of):
    (found,) = SCHEDULER_BEFORE_OPTIMIZER(trace_of(make_program(["scheduler", "optimizer"])))

    assert (found.fault, found.severity, found.step) == (FAULT, "confirm", 1)
    assert found.what == "ExponentialLR stepped 1 time before the first step of SGD."
    assert found.evidence == {"num_early_steps": 1}


@pytest.mark.parametrize(
    ("num_early_steps", "count"), [(0, None), (1, "1 time"), (7, "at least 1 time")]
)
def test_steps_before_the_first_turn_are_reported(trace_of, num_early_steps, count):
    """The trace stores an event that is repeated without a step of an optimizer only once."""
    program = make_program(["optimizer", "scheduler"], num_early_steps=num_early_steps)

    found = SCHEDULER_BEFORE_OPTIMIZER(trace_of(program))

    assert [f.what for f in found] == [
        f"ExponentialLR stepped {count} before the first step of SGD."
    ] * (count is not None)


@pytest.mark.parametrize(("turns_before", "turns_after"), [(1, 1), (10, 1), (10, 30)])
def test_scheduler_steps_in_repeated_turns_are_all_counted(trace_of, turns_before, turns_after):
    """The second optimizer starts later than its scheduler, which steps in each turn.

    The turns after the start have the same events between two steps as those before it.
    """

    def program():
        parts = nn.Linear(6, 4), nn.Linear(4, 1)
        first, second = (torch.optim.SGD(part.parameters(), lr=0.01) for part in parts)
        schedulers = ExponentialLR(first, 0.99), ExponentialLR(second, 0.99)
        for number in range(turns_before + turns_after):
            for optimizer in (first, second):
                optimizer.zero_grad()
            parts[1](parts[0](random_rows(16))).square().mean().backward()
            first.step()
            if number >= turns_before:
                second.step()
            for scheduler in schedulers:
                scheduler.step()

    (found,) = SCHEDULER_BEFORE_OPTIMIZER(trace_of(program))

    assert (found.fault, found.severity) == (FAULT, "confirm")
    assert "SGD (optimizer 1)" in found.what
    assert found.evidence == {"num_early_steps": turns_before}


@pytest.mark.parametrize("is_first_skipped", [True, False])
def test_a_first_step_that_a_gradient_scaler_skips_is_normal(trace_of, is_first_skipped):
    def program():
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scheduler, scaler = ExponentialLR(optimizer, 0.9), torch.amp.GradScaler("cpu")
        scheduler.step()
        for number in range(4):
            optimizer.zero_grad()
            factor = torch.inf if is_first_skipped and number == 0 else 1.0
            scaler.scale(factor * model(random_rows(16)).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()

    assert len(SCHEDULER_BEFORE_OPTIMIZER(trace_of(program))) == (not is_first_skipped)


def test_a_scheduler_whose_optimizer_never_steps_is_not_reported(trace_of):
    def program():
        model = nn.Linear(6, 1)
        unused = torch.optim.SGD(model.parameters(), lr=0.01)
        optimizer, scheduler = torch.optim.Adam(model.parameters()), ExponentialLR(unused, 0.9)
        for _ in range(4):
            train_step(optimizer, model(random_rows(16)).square().mean())
            scheduler.step()

    assert SCHEDULER_BEFORE_OPTIMIZER(trace_of(program)) == ()


def test_loading_the_state_of_a_scheduler_is_no_early_step(trace_of):
    def program():
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scheduler = ExponentialLR(optimizer, 0.9)
        scheduler.load_state_dict({**scheduler.state_dict(), "last_epoch": 5, "_step_count": 6})
        for _ in range(4):
            train_step(optimizer, model(random_rows(16)).square().mean())
            scheduler.step()

    assert SCHEDULER_BEFORE_OPTIMIZER(trace_of(program)) == ()
