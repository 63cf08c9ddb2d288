"""Attributes that look like requires_grad = False but do not freeze anything (TRACE-16)."""

import pytest
import torch
from torch import nn

from sluice.trace.rules.library import judge
from sluice.trace.rules.structure.misspelled_requires_grad import MISSPELLED_REQUIRES_GRAD
from tests.support.traced.small_programs import fault_severities, random_rows, train_step

FAULT = "misspelled requires_grad"


@pytest.mark.parametrize("is_module", [True, False])
def test_a_misspelled_freeze_needs_confirmation(trace_of, is_module):
    def program():
        model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 1))
        if is_module:
            model[0].requires_grad = False
        else:
            model[0].weight.requires_gradient = False
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(6):
            train_step(optimizer, model(random_rows(16)).square().mean())

    assert (FAULT, "confirm") in fault_severities(trace_of(program))


def test_frozen_parameters_of_a_misspelled_freeze_do_not_count_as_learning(trace_of):
    def program():
        model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 1))
        model[0].requires_grad = False
        model[0].bias.requires_grad_(requires_grad=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(6):
            train_step(optimizer, model(random_rows(16)).square().mean())

    findings = [f for f in judge(trace_of(program)) if f.fault == FAULT]

    assert [f.evidence["num_trained_parameters"] for f in findings] == [1]


def make_program(change, *, before_step=0, optimized=slice(None), num_steps=6):
    """Return a program that calls ``change(model)`` before a step, counted from 0."""

    def program():
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model[optimized].parameters(), lr=0.01)
        for number in range(num_steps):
            if number == before_step:
                change(model)
            train_step(optimizer, model(random_rows(16)).square().mean())

    return program


def set_on_module(model):
    model[0].requires_grad = False


def set_on_weight_and_module(model):
    model[0].weight.require_grad = False
    set_on_module(model)


@pytest.mark.parametrize(
    ("change", "owners", "num_trained_parameters"),
    [
        (set_on_module, "Sequential.0 has requires_grad = False, but is still trained.", 2),
        (
            set_on_weight_and_module,
            "Sequential.0, Sequential.0.weight have requires_grad = False, but are still trained.",
            2,
        ),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_attributes_and_the_trained_parameters_are_listed(
    trace_of, change, owners, num_trained_parameters
):
    (found,) = MISSPELLED_REQUIRES_GRAD(trace_of(make_program(change)))

    assert (found.fault, found.severity, found.step) == (FAULT, "confirm", 1)
    assert found.what == f"Sequential: {owners}"
    assert found.evidence == {"num_trained_parameters": num_trained_parameters}


def freeze_with_the_method(model):
    model[0].requires_grad_(requires_grad=False)


def freeze_each_parameter(model):
    for parameter in model[0].parameters():
        parameter.requires_grad = False


def set_the_attribute_too(model):
    """The attribute on the module has no effect, but the layer is frozen as intended."""
    set_on_module(model)
    freeze_with_the_method(model)


def set_to_true(model):
    model[0].requires_grad = True


def set_another_attribute(model):
    model[0].is_frozen = False
    model[0].needs_input = False


def set_a_number(model):
    model[0].require_grads = 0


@pytest.mark.parametrize(
    "change",
    [
        freeze_with_the_method,
        freeze_each_parameter,
        set_the_attribute_too,
        set_to_true,
        set_another_attribute,
        set_a_number,
    ],
    ids=lambda change: change.__name__,
)
def test_layers_that_are_frozen_or_meant_to_learn_are_not_reported(trace_of, change):
    assert MISSPELLED_REQUIRES_GRAD(trace_of(make_program(change))) == ()


def test_layers_in_no_optimizer_are_not_reported(trace_of):
    program = make_program(set_on_module, optimized=slice(2, None))

    assert MISSPELLED_REQUIRES_GRAD(trace_of(program)) == ()
