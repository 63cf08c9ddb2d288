"""Parameters that belong to two optimizers (TRACE-9)."""

import pytest
import torch
from torch import nn

from sluice.trace.rules.optimizers.parameter_in_two_optimizers import PARAMETER_IN_TWO_OPTIMIZERS
from tests.support.traced.small_programs import random_rows, train_step

FAULT = "parameter in two optimizers"


def make_program(schedule, *, num_shared_layers=1):
    """Return a program with an optimizer A of a body and an optimizer B of a head.

    Args:
        schedule: Optimizers that step after each backward pass, such as "AB".
        num_shared_layers: Number of layers of the body that B has, too.
    """

    def program():
        body, head = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 4)), nn.Linear(4, 1)
        shared = [p for layer in body[:num_shared_layers] for p in layer.parameters()]
        optimizers = {
            "A": torch.optim.Adam(body.parameters(), lr=0.01),
            "B": torch.optim.SGD([*head.parameters(), *shared], lr=0.01),
        }
        for names in schedule:
            for optimizer in optimizers.values():
                optimizer.zero_grad()
            head(body(random_rows(16))).square().mean().backward()
            for name in names:
                optimizers[name].step()

    return program


def test_two_steps_on_the_same_gradients_are_an_error(trace_of):
    (found,) = PARAMETER_IN_TWO_OPTIMIZERS(trace_of(make_program(["AB"] * 5)))

    # Step 2 is the first step of B.
    assert (found.fault, found.severity, found.step) == (FAULT, "error", 2)
    assert "2 parameters are in both Adam (optimizer 0) and SGD (optimizer 1)" in found.what
    assert "0.weight" in found.what
    assert found.what.endswith("Both stepped on the same gradient 5 times.")
    assert found.evidence == {"num_shared": 2, "num_repeated_steps": 5}


@pytest.mark.parametrize(
    ("schedule", "severity", "step"),
    [(["AB", "A", "A"], "confirm", 2), (["AB", "A", "AB"], "error", 2)],
)
def test_one_repeated_step_needs_confirmation(trace_of, schedule, severity, step):
    (found,) = PARAMETER_IN_TWO_OPTIMIZERS(trace_of(make_program(schedule)))

    assert (found.severity, found.step) == (severity, step)
    assert found.evidence["num_repeated_steps"] == sum(len(names) == 2 for names in schedule)


@pytest.mark.parametrize(("schedule", "step"), [(["A", "B"] * 3, 2), (["AA", "B"] * 3, 3)])
def test_alternating_losses_need_confirmation(trace_of, schedule, step):
    """An optimizer may step twice on its own gradients."""
    (found,) = PARAMETER_IN_TWO_OPTIMIZERS(trace_of(make_program(schedule)))

    assert (found.severity, found.step) == ("confirm", step)
    assert found.evidence == {"num_shared": 2, "num_repeated_steps": 0}


@pytest.mark.parametrize(
    ("schedule", "expected_steps"),
    [(["A"] * 3 + ["B"] * 3, []), (["A"] * 3 + ["B"] * 3 + ["A"], [4])],
)
def test_an_optimizer_that_follows_another_is_not_reported(trace_of, schedule, expected_steps):
    found = PARAMETER_IN_TWO_OPTIMIZERS(trace_of(make_program(schedule)))

    assert [(f.severity, f.step) for f in found] == [("confirm", step) for step in expected_steps]


def test_optimizers_of_different_layers_are_not_reported(trace_of):
    program = make_program(["AB"] * 5, num_shared_layers=0)

    assert PARAMETER_IN_TWO_OPTIMIZERS(trace_of(program)) == ()


def test_an_optimizer_that_never_steps_is_not_reported(trace_of):
    assert PARAMETER_IN_TWO_OPTIMIZERS(trace_of(make_program(["A"] * 5))) == ()


def test_a_new_optimizer_for_every_task_is_not_reported(trace_of):
    def program():
        model = nn.Linear(6, 1)
        for _ in range(3):
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            for _ in range(3):
                train_step(optimizer, model(random_rows(16)).square().mean())

    assert PARAMETER_IN_TWO_OPTIMIZERS(trace_of(program)) == ()
