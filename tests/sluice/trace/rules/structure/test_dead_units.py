"""Layers without any active neuron (TRACE-8)."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.rules.structure.dead_units import DEAD_UNITS
from tests.support.traced.small_programs import random_rows, train_step

FAULT = "dead units"
DEAD_BIAS = -50.0


class Network(nn.Module):
    """A hidden layer with an activation, and a head."""

    def __init__(self, activation, *, num_hidden=8, num_dead=0):
        super().__init__()
        self.hidden, self.head = nn.Linear(6, num_hidden), nn.Linear(num_hidden, 1)
        self.activation = activation
        nn.init.constant_(self.hidden.bias[:num_dead], DEAD_BIAS)

    def forward(self, x):
        return self.head(self.activation(self.hidden(x)))


class ReLUOfNegativeInputs(nn.Module):
    """A ReLU whose input is never positive, although the layer before it has positive outputs."""

    def __init__(self):
        super().__init__()
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.relu(-x.abs())


def make_program(network, *, num_steps=8, num_rows=16, before_step=lambda *_: None):
    """Return a program that trains ``network()``; ``before_step`` takes it and the step, from 1."""

    def program():
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for number in range(1, num_steps + 1):
            before_step(model, number)
            x = random_rows(num_rows, seed=number)
            train_step(optimizer, F.mse_loss(model(x)[:, 0], x.sum(1)))

    return program


def dead_network(num_hidden=8):
    return Network(nn.ReLU(), num_hidden=num_hidden, num_dead=num_hidden)


@pytest.mark.parametrize(
    ("network", "layer"),
    [
        (lambda: Network(ReLUOfNegativeInputs()), "activation.relu (ReLU)"),
        (dead_network, "hidden (Linear)"),
        (lambda: Network(F.relu, num_dead=8), "hidden (Linear)"),
    ],
    ids=["activation", "layer before an activation", "layer before a function"],
)
def test_a_layer_whose_neurons_are_all_inactive_is_reported(trace_of, network, layer):
    trace = trace_of(make_program(network))

    (found,) = DEAD_UNITS(trace)

    num_measured = len(trace.statistics)
    assert num_measured >= 4
    assert (found.fault, found.severity, found.step) == (FAULT, "error", 1)
    assert found.what == (
        f"Network.{layer}: none of 128 values is positive in the last {num_measured} of "
        f"{num_measured} measured steps, from step 1 on."
    )
    assert found.evidence == {"num_inactive": num_measured, "num_measured": num_measured}


def set_bias(model, value):
    nn.init.constant_(model.hidden.bias, value)


def test_a_layer_that_dies_is_reported_from_its_first_inactive_step_on(trace_of):
    def die_before_step_2(model, number):
        if number == 2:
            set_bias(model, DEAD_BIAS)

    trace = trace_of(make_program(lambda: Network(nn.ReLU()), before_step=die_before_step_2))

    (found,) = DEAD_UNITS(trace)

    assert found.step == 2
    assert found.evidence["num_inactive"] == found.evidence["num_measured"] - 1


def test_a_layer_that_dies_at_a_jump_of_the_loss_is_reported_from_the_jump_on(trace_of):
    def die_before_step_20(model, number):
        if number == 20:
            set_bias(model, DEAD_BIAS)
            nn.init.constant_(model.head.bias, 100.0)

    def network():
        return Network(nn.ReLU())

    trace = trace_of(make_program(network, num_steps=120, before_step=die_before_step_20))
    # The measured steps depend on the speed of the steps; these are certain to be later.
    late = tuple(s for s in trace.statistics if s.step < 20 or s.step > 21)
    assert sum(s.step > 21 for s in late) >= 3

    (found,) = DEAD_UNITS(trace.model_copy(update={"statistics": late}))

    assert found.step == 20
    assert "The loss jumped from" in found.what


@pytest.mark.parametrize(("num_steps", "num_findings"), [(2, 0), (3, 1)])
def test_three_inactive_measured_steps_are_required(trace_of, num_steps, num_findings):
    trace = trace_of(make_program(dead_network, num_steps=num_steps))

    assert len(DEAD_UNITS(trace)) == num_findings


@pytest.mark.parametrize(("num_rows", "num_findings"), [(31, 0), (32, 1)])
def test_thirty_two_values_are_required(trace_of, num_rows, num_findings):
    trace = trace_of(make_program(lambda: dead_network(num_hidden=1), num_rows=num_rows))

    assert len(DEAD_UNITS(trace)) == num_findings


def revive_before_the_last_step(model, number):
    set_bias(model, 0.0 if number == 4 else DEAD_BIAS)


@pytest.mark.parametrize(
    "program",
    [
        make_program(lambda: Network(nn.ReLU())),
        make_program(lambda: Network(nn.ReLU(), num_dead=7)),
        make_program(lambda: Network(nn.LeakyReLU(), num_dead=8)),
        make_program(lambda: Network(nn.ELU(), num_dead=8)),
        # A linear layer with negative outputs and nonzero gradients.
        make_program(lambda: Network(lambda x: x / 50, num_dead=8)),
        # Step 4 is measured, and the layer is active again.
        make_program(dead_network, num_steps=4, before_step=revive_before_the_last_step),
    ],
    ids=["active", "one active neuron", "leaky", "saturated", "linear", "active again"],
)
def test_layers_that_can_learn_are_not_reported(trace_of, program):
    assert DEAD_UNITS(trace_of(program)) == ()


def test_a_layer_that_is_not_called_is_not_reported(trace_of):
    def network():
        model = Network(nn.ReLU())
        model.unused = nn.Sequential(dead_network(), nn.ReLU())
        return model

    assert DEAD_UNITS(trace_of(make_program(network))) == ()
