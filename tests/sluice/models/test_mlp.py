"""The multilayer perceptron reads the last row of a window and has a linear skip connection."""

import torch

from sluice.models.build import build_network
from sluice.models.mlp import MultilayerPerceptron
from sluice.models.settings import ModelSettings


def make_network(**settings) -> MultilayerPerceptron:
    torch.manual_seed(0)
    mlp = build_network(3, 2, ModelSettings(architecture="mlp", **settings))
    assert isinstance(mlp, MultilayerPerceptron)
    return mlp


def test_mlp_with_a_zero_head_is_linear_in_the_last_row():
    network = make_network(hidden=8)
    for parameter in network.head.parameters():
        torch.nn.init.zeros_(parameter)
    x = torch.randn(5, 4, 3)

    assert torch.equal(network(x), x[:, -1] @ network.linear.weight.T)


def test_number_of_hidden_layers_follows_the_setting():
    widths = [
        m.out_features for m in make_network(hidden=8, layers=3).modules() if hasattr(m, "bias")
    ]

    assert sorted(widths) == [2, 2, 8, 8, 8]


def test_dropout_is_active_only_in_training_mode():
    network = make_network(hidden=64, dropout=0.5)
    x = torch.randn(2, 1, 3)

    assert not torch.equal(network(x), network(x))
    network.eval()
    assert torch.equal(network(x), network(x))
