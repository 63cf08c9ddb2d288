"""The sLSTM: comparison with its formulas, extreme inputs, and training."""

import math

import pytest
import torch
from torch import nn

from sluice.base.seeding import deterministic
from sluice.models.settings import ModelSettings
from sluice.models.slstm import SLSTM, SLSTMLayer


def compute_states(layer: SLSTMLayer, x: torch.Tensor) -> torch.Tensor:
    """Return hidden states (B, L, H), computed with plain floats and exp() without stabilizer."""
    size = layer.hidden
    w, r, b = (p.detach().double() for p in (layer.weight_ih, layer.weight_hh, layer.bias))
    states = torch.zeros(len(x), x.shape[1], size, dtype=torch.float64)
    for example in range(len(x)):
        h, c, n = torch.zeros(size, dtype=torch.float64), [0.0] * size, [0.0] * size
        for row in range(x.shape[1]):
            gates = w @ x[example, row].double() + r @ h + b
            for unit in range(size):
                i, f, z, o = (float(gates[block * size + unit]) for block in range(4))
                forget = 1 / (1 + math.exp(-f))
                c[unit] = forget * c[unit] + math.exp(i) * math.tanh(z)
                n[unit] = forget * n[unit] + math.exp(i)
                states[example, row, unit] = c[unit] / n[unit] / (1 + math.exp(-o))
            h = states[example, row]
    return states


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_layer_equals_the_formulas_of_the_paper(scale):
    torch.manual_seed(1)
    layer = SLSTMLayer(3, 4).double()
    x = scale * torch.randn(3, 7, 3, dtype=torch.float64)

    torch.testing.assert_close(
        layer(x)[0].detach(), compute_states(layer, x), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("scale", [1e3, 1e6])
def test_extreme_inputs_overflow_neither_states_nor_gradients(scale):
    torch.manual_seed(2)
    layer = SLSTMLayer(3, 8)
    hidden, normalizer = layer(scale * torch.randn(16, 40, 3))
    hidden.sum().backward()

    assert torch.isfinite(hidden).all()
    assert hidden.abs().max() <= 1
    assert normalizer.min() >= 1
    assert normalizer.max() <= 40
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters())


def test_gradients_equal_finite_differences():
    torch.manual_seed(3)
    layer = SLSTMLayer(2, 3).double()
    x = torch.randn(2, 5, 2, dtype=torch.float64, requires_grad=True)

    def run(x, *weights):
        named = dict(zip(dict(layer.named_parameters()), weights, strict=True))
        return torch.func.functional_call(layer, named, (x,))[0]

    assert torch.autograd.gradcheck(run, (x, *layer.parameters()))


def test_network_applies_all_layers_and_predicts_from_the_last_row():
    torch.manual_seed(4)
    network = SLSTM(3, 2, ModelSettings(hidden=5, layers=2))
    x = torch.randn(4, 6, 3)
    first, _ = network.core[0](x)
    second, _ = network.core[1](first)

    torch.testing.assert_close(network(x), network.head(second[:, -1]))
    assert not torch.allclose(network(x), network(x.flip(1)))


@pytest.mark.parametrize("layers", [1, 2])
def test_dropout_is_active_only_in_training_mode(layers):
    network = SLSTM(3, 1, ModelSettings(hidden=8, layers=layers, dropout=0.5))
    x = torch.randn(4, 6, 3)

    assert not torch.equal(network(x), network(x))
    network.eval()
    assert torch.equal(network(x), network(x))


@pytest.mark.slow
def test_network_learns_to_remember_the_first_row():
    """The target is the sign of the first of 12 rows; the other rows are noise."""
    torch.manual_seed(5)
    network = SLSTM(1, 1, ModelSettings(hidden=16))
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-2)
    with deterministic():
        for _ in range(120):
            x = torch.randn(64, 12, 1)
            loss = nn.functional.binary_cross_entropy_with_logits(
                network(x)[:, 0], (x[:, 0, 0] > 0).float()
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    x = torch.randn(1000, 12, 1)

    assert ((network(x)[:, 0] > 0) == (x[:, 0, 0] > 0)).float().mean() > 0.9
