"""Optimizers that contain parameters of a replaced layer (TRACE-9)."""

import pytest
import torch
from torch import nn

from sluice.trace.rules.optimizers.stale_optimizer_parameters import STALE_OPTIMIZER_PARAMETERS
from tests.support.traced.small_programs import random_rows, train_step

STEPS = 6


def make_program(change, *, before_step=0):
    """Return a program that calls ``change`` before a step, counted from 0.

    ``change`` takes the network and the optimizer, and returns the optimizer to continue with.
    """

    def program():
        model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for number in range(STEPS):
            if number == before_step:
                optimizer = change(model, optimizer)
            train_step(optimizer, model(random_rows(16)).square().mean())

    return program


def replace_head(model, optimizer):
    model[2] = nn.Linear(4, 3)
    return optimizer


@pytest.mark.parametrize(("before_step", "step"), [(0, 1), (3, 4)])
def test_a_layer_replaced_after_the_optimizer_was_created_is_reported(trace_of, before_step, step):
    trace = trace_of(make_program(replace_head, before_step=before_step))

    (found,) = STALE_OPTIMIZER_PARAMETERS(trace)

    assert (found.fault, found.severity, found.step) == (
        "stale optimizer parameters",
        "error",
        step,
    )
    assert found.what == (
        "SGD contains 2 parameters that no network contains. 2 parameters with gradients belong "
        "to no optimizer: Sequential.2.weight, Sequential.2.bias."
    )
    assert found.evidence == {"num_orphaned": 2, "num_unoptimized": 2}


@pytest.mark.parametrize(("num_steps", "num_findings"), [(1, 0), (2, 1)])
def test_an_optimizer_of_another_network_is_reported_after_two_steps(
    trace_of, num_steps, num_findings
):
    """After one step, the program may still call the network of the optimizer."""

    def program():
        model, copy = nn.Linear(6, 1), nn.Linear(6, 1)
        optimizer = torch.optim.SGD(copy.parameters(), lr=0.01)
        for _ in range(num_steps):
            train_step(optimizer, model(random_rows(16)).square().mean())

    found = STALE_OPTIMIZER_PARAMETERS(trace_of(program))

    assert [(f.severity, f.evidence["num_orphaned"]) for f in found] == [
        ("error", 2)
    ] * num_findings


def replace_head_and_optimizer(model, _):
    model[2] = nn.Linear(4, 3)
    return torch.optim.SGD(model.parameters(), lr=0.01)


def replace_head_and_add_its_parameters(model, optimizer):
    model[2] = nn.Linear(4, 3)
    optimizer.add_param_group({"params": model[2].parameters()})
    return optimizer


def initialize_head_again(model, optimizer):
    model[2].reset_parameters()
    return optimizer


def drop_head(model, optimizer):
    """Continue without the head, whose parameters stay in the optimizer."""
    model[2] = nn.Identity()
    return optimizer


def replace_frozen_head(model, optimizer):
    model[2] = nn.Linear(4, 3).requires_grad_(requires_grad=False)
    return optimizer


@pytest.mark.parametrize("before_step", [0, 3])
@pytest.mark.parametrize(
    "change",
    [
        replace_head_and_optimizer,
        replace_head_and_add_its_parameters,
        initialize_head_again,
        drop_head,
        replace_frozen_head,
    ],
    ids=lambda change: change.__name__,
)
def test_similar_but_correct_changes_are_not_reported(trace_of, change, before_step):
    trace = trace_of(make_program(change, before_step=before_step))

    assert STALE_OPTIMIZER_PARAMETERS(trace) == ()


def test_programs_that_set_gradients_themselves_are_not_judged(trace_of):
    """The program updates the new head itself."""

    def program():
        model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        model[1] = nn.Linear(4, 3)
        for _ in range(STEPS):
            loss = model(random_rows(16)).square().mean()
            parameters = list(model.parameters())
            for parameter, grad in zip(
                parameters, torch.autograd.grad(loss, parameters), strict=True
            ):
                parameter.grad = grad
            optimizer.step()
            with torch.no_grad():
                for parameter in model[1].parameters():
                    parameter -= 0.01 * parameter.grad

    assert STALE_OPTIMIZER_PARAMETERS(trace_of(program)) == ()
