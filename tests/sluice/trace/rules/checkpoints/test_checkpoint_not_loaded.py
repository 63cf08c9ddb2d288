"""Checkpoints of which no key matches the network (TRACE-16)."""

import pytest
import torch
from torch import nn

from sluice.trace.rules.checkpoints.checkpoint_not_loaded import CHECKPOINT_NOT_LOADED
from sluice.trace.rules.library import judge
from tests.support.traced import loading_and_resuming as programs
from tests.support.traced.small_programs import random_rows, train_step


def make_program(load):
    """Return a program of five steps that calls ``load`` after the third step."""

    def program():
        model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for number in range(5):
            if number == 3:
                load(model, optimizer)
            train_step(optimizer, model(random_rows(16)).square().mean())

    return program


def with_prefix(model):
    return {f"module.{key}": value.clone() for key, value in model.state_dict().items()}


def test_a_checkpoint_whose_keys_have_a_prefix_is_reported_as_not_loaded(trace_of):
    found = judge(trace_of(programs.state_keys_with_prefix))

    assert [(f.fault, f.severity, f.step) for f in found] == [("checkpoint not loaded", "error", 1)]


def test_two_loads_without_a_matching_key_are_one_finding_from_the_first_on(trace_of):
    def load(model, _):
        model.load_state_dict(with_prefix(model), strict=False)
        model[0].load_state_dict({"w": torch.zeros(1)}, strict=False)

    (found,) = CHECKPOINT_NOT_LOADED(trace_of(make_program(load)))

    assert (found.fault, found.severity, found.step) == ("checkpoint not loaded", "error", 4)
    assert found.what == (
        "Sequential.load_state_dict matched 0 of 4 keys; 4 keys of the network were missing from "
        "the checkpoint."
    )
    assert found.evidence == {"num_keys": 4, "num_missing": 4, "num_unmatched_loads": 2}


@pytest.mark.parametrize(("num_matching", "num_findings"), [(0, 1), (1, 0)])
def test_one_matching_key_is_intentional(trace_of, num_matching, num_findings):
    def load(model, _):
        state = with_prefix(model)
        for key in list(state)[:num_matching]:
            state[key.removeprefix("module.")] = state.pop(key)
        model.load_state_dict(state, strict=False)

    assert len(CHECKPOINT_NOT_LOADED(trace_of(make_program(load)))) == num_findings


def test_loading_a_body_without_its_head_is_intentional(trace_of):
    assert judge(trace_of(programs.only_the_body_is_loaded)) == ()


def load_without_prefix(model, _):
    state = {k.removeprefix("module."): v for k, v in with_prefix(model).items()}
    model.load_state_dict(state)


def remove_the_prefix_after_an_error(model, _):
    state = with_prefix(model)
    try:
        model.load_state_dict(state)
    except RuntimeError:
        model.load_state_dict({k.removeprefix("module."): v for k, v in state.items()})


def load_one_layer(model, _):
    model[2].load_state_dict(nn.Linear(4, 1).state_dict())


def load_the_optimizer(_, optimizer):
    optimizer.load_state_dict(optimizer.state_dict())


def load_a_network_without_state(*_):
    nn.ReLU().load_state_dict({"slope": torch.zeros(1)}, strict=False)


@pytest.mark.parametrize(
    "load",
    [
        load_without_prefix,
        remove_the_prefix_after_an_error,
        load_one_layer,
        load_the_optimizer,
        load_a_network_without_state,
    ],
    ids=lambda load: load.__name__,
)
def test_a_correct_load_is_not_reported(trace_of, load):
    assert CHECKPOINT_NOT_LOADED(trace_of(make_program(load))) == ()
