"""POC-2: activity of modules, recorded from their inputs and outputs."""

import pytest
import torch
from torch import nn

from sluice.models.module_activity import record_activity


def record_passes(model, *inputs):
    with record_activity(model) as recorder:
        for x in inputs:
            recorder.start_pass()
            model(x)
    return recorder.activity


def test_unit_active_in_any_pass_counts_as_active():
    relu = nn.Sequential(nn.ReLU())
    found = record_passes(
        relu, torch.tensor([[1.0, -1.0, -1.0]]), torch.tensor([[-1.0, 0.0, 2.0]])
    )["0"]

    assert (found.num_active_units, found.num_units, found.num_examples) == (2, 3, 2)
    assert not found.is_dead
    assert record_passes(relu, -torch.ones(4, 3))["0"].is_dead


@pytest.mark.parametrize(
    ("model", "shape", "num_units"),
    [
        (nn.Sequential(nn.Linear(3, 5), nn.ReLU()), (2, 3), 5),
        (nn.Sequential(nn.Linear(3, 5), nn.ReLU()), (2, 7, 3), 5),
        (nn.Sequential(nn.Conv1d(3, 5, 1), nn.ReLU()), (2, 3, 7), 5),
        (nn.Sequential(nn.Conv2d(3, 5, 1), nn.ReLU(inplace=True)), (2, 3, 7, 7), 5),
        (nn.Sequential(nn.Flatten(0), nn.ReLU()), (2, 3), 1),
    ],
)
def test_unit_axis_follows_the_previous_layer(model, shape, num_units):
    assert record_passes(model, torch.randn(shape))["1"].num_units == num_units


def test_in_place_activation_does_not_change_the_recorded_output():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(inplace=True))
    nn.init.eye_(model[0].weight)

    assert record_passes(model, torch.tensor([[-1.0, 3.0]]))["0"].num_active_units == 1


def test_module_called_with_several_widths_has_no_units():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.relu = nn.ReLU()

        def forward(self, x):
            return self.relu(x), self.relu(x[:, :1])

    found = record_passes(Shared(), -torch.ones(2, 3), -torch.ones(2, 3))["relu"]

    assert found.num_units == 0
    assert not found.is_dead


def test_zero_inputs_are_distinguished_from_no_inputs():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    nn.init.zeros_(model[0].weight)
    nn.init.zeros_(model[0].bias)
    found = record_passes(model, torch.ones(2, 3))

    assert (found["0"].has_nonzero_input, found["1"].has_nonzero_input) == (True, False)
    assert found["1"].previous_module_with_weights == "0"
    assert record_passes(model, torch.ones(0, 3))["0"].num_examples == 0


def test_modules_with_the_same_input_have_the_same_input_key():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.three = (nn.Linear(3, 3) for _ in range(3))

        def forward(self, x):
            return self.one(x) + self.two(x) + self.three(x + 1)

    found = record_passes(Branches(), torch.ones(2, 3))

    assert found["one"].input_key == found["two"].input_key != found["three"].input_key


def test_hooks_are_removed_if_the_model_raises():
    model = nn.Linear(3, 3)
    with pytest.raises(RuntimeError), record_activity(model):
        model(torch.ones(2, 4))

    assert not model._forward_hooks
    assert not model._forward_pre_hooks
