"""POC-2: units with equal weights and equal gradients, which stay equal, are detected."""

import pytest
import torch
from torch import nn

from sluice.failfast.gradients.symmetric_units import symmetric_weights


def run_backward(model, x=None):
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(1)) if x is None else x
    output = model(x)
    (output[0] if isinstance(output, tuple) else output).square().sum().backward()
    return model


def fill_parameters(model, value):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model


def test_a_constant_network_is_symmetric_but_its_single_output_row_is_not():
    model = nn.Sequential(nn.Linear(3, 33), nn.Tanh(), nn.Linear(33, 1))

    assert symmetric_weights(run_backward(fill_parameters(model, 0.1))) == ("0.weight",)


def test_random_weights_are_not_symmetric():
    assert symmetric_weights(run_backward(nn.Linear(3, 8))) == ()


def test_equal_rows_with_different_gradients_are_not_symmetric():
    model = nn.Linear(3, 2)
    nn.init.zeros_(model.weight)
    (model(torch.ones(4, 3)) * torch.tensor([1.0, -1.0])).sum().backward()

    assert symmetric_weights(model) == ()


def test_weights_without_gradients_are_not_reported():
    assert symmetric_weights(fill_parameters(nn.Linear(3, 8), 0.1)) == ()


def test_one_different_row_of_many_breaks_the_symmetry():
    model = fill_parameters(nn.Linear(3, 8), 0.1)
    with torch.no_grad():
        model.weight[5, 2] += 0.01

    assert symmetric_weights(run_backward(model)) == ()


@pytest.mark.parametrize("core", [nn.RNN, nn.GRU, nn.LSTM])
def test_gates_of_a_recurrent_layer_are_compared_within_the_gate(core):
    model = fill_parameters(core(3, 5), 0.1)

    assert "weight_ih_l0" in symmetric_weights(run_backward(model, torch.randn(4, 6, 3)))


@pytest.mark.parametrize("layer", [nn.Conv2d(1, 4, 3), nn.ConvTranspose2d(1, 4, 3)])
def test_equal_filters_of_a_convolution_are_symmetric(layer):
    x = torch.randn(2, 1, 6, 6)

    assert symmetric_weights(run_backward(fill_parameters(layer, 0.1), x)) == ("weight",)


def test_rows_of_an_embedding_are_not_units():
    model = nn.Embedding(4, 3)
    nn.init.zeros_(model.weight)
    model(torch.arange(4)).sum().backward()

    assert symmetric_weights(model) == ()
