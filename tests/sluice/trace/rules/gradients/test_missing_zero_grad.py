"""Gradients that are not cleared between steps (TRACE-13)."""

import pytest
import torch
from torch import nn

from sluice.trace.rules.gradients.missing_zero_grad import MISSING_ZERO_GRAD
from tests.support.traced.small_programs import random_rows


def clear(optimizer):
    optimizer.zero_grad()


def make_program(num_steps, carried_steps, *, clear=clear):
    """Return a program that clears gradients before each step, from 1, not in ``carried_steps``."""

    def program():
        model = nn.Linear(6, 1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for number in range(1, num_steps + 1):
            if number not in carried_steps:
                clear(optimizer)
            model(random_rows(16)).square().mean().backward()
            optimizer.step()

    return program


def test_gradients_that_are_never_cleared_need_confirmation(trace_of):
    (found,) = MISSING_ZERO_GRAD(trace_of(make_program(6, range(1, 7))))

    assert (found.fault, found.severity, found.step) == ("missing zero_grad", "confirm", 2)
    assert found.what.startswith("Adam: 5 of 6 steps used gradients that were not cleared")
    assert found.evidence == {"num_carried": 5, "num_steps": 6}


@pytest.mark.parametrize(
    ("num_steps", "carried_steps", "expected_steps"),
    [
        (2, {2}, []),
        (3, {2, 3}, [2]),
        # Half of the steps after the first one.
        (7, {4, 6}, []),
        (7, {4, 6, 7}, [4]),
    ],
)
def test_two_steps_and_half_of_all_must_use_old_gradients(
    trace_of, num_steps, carried_steps, expected_steps
):
    found = MISSING_ZERO_GRAD(trace_of(make_program(num_steps, carried_steps)))

    assert [f.step for f in found] == expected_steps
    assert [f.evidence["num_carried"] for f in found] == [len(carried_steps)] * len(found)


def set_to_none(optimizer):
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = None


def fill_with_zeros(optimizer):
    for parameter in optimizer.param_groups[0]["params"]:
        if parameter.grad is not None:
            parameter.grad.zero_()


@pytest.mark.parametrize("clear", [clear, set_to_none, fill_with_zeros])
def test_cleared_gradients_are_not_reported(trace_of, clear):
    assert MISSING_ZERO_GRAD(trace_of(make_program(6, (), clear=clear))) == ()


def test_accumulated_gradients_are_not_reported(trace_of):
    def program():
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for number in range(1, 13):
            (model(random_rows(16)).square().mean() / 3).backward()
            if number % 3 == 0:
                optimizer.step()
                optimizer.zero_grad()

    assert MISSING_ZERO_GRAD(trace_of(program)) == ()


def test_programs_that_set_gradients_themselves_are_not_judged(trace_of):
    """A momentum over batches, with gradients from ``torch.autograd.grad``."""

    def program():
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(6):
            loss = model(random_rows(16)).square().mean()
            for parameter, grad in zip(
                model.parameters(), torch.autograd.grad(loss, model.parameters()), strict=True
            ):
                if parameter.grad is None:
                    parameter.grad = grad
                else:
                    parameter.grad.mul_(0.9).add_(grad)
            optimizer.step()

    assert MISSING_ZERO_GRAD(trace_of(program)) == ()


def test_optimizers_that_call_their_closure_several_times_are_not_judged(trace_of):
    def program():
        model = nn.Linear(6, 1)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

        def closure():
            loss = model(random_rows(16)).square().mean()
            loss.backward()
            return loss

        for _ in range(6):
            optimizer.step(closure)

    assert MISSING_ZERO_GRAD(trace_of(program)) == ()
