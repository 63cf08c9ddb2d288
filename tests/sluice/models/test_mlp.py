"""A multilayer perceptron reads the last row of a window, and contains a linear model."""

import torch

from sluice.models.build import build_network
from sluice.models.mlp import MultilayerPerceptron
from sluice.models.settings import ModelSettings


def network(**settings) -> MultilayerPerceptron:
    torch.manual_seed(0)
    built = build_network(3, 2, ModelSettings(architecture="mlp", **settings))
    assert isinstance(built, MultilayerPerceptron)
    return built


def test_without_its_hidden_layers_it_is_linear():
    built = network(hidden=8)
    for parameter in built.head.parameters():
        torch.nn.init.zeros_(parameter)
    x = torch.randn(5, 4, 3)

    assert torch.equal(built(x), x[:, -1] @ built.linear.weight.T)


def test_it_has_as_many_hidden_layers_as_asked_for():
    widths = [m.out_features for m in network(hidden=8, layers=3).modules() if hasattr(m, "bias")]

    assert sorted(widths) == [2, 2, 8, 8, 8]


def test_dropout_acts_in_training_only():
    built = network(hidden=64, dropout=0.5)
    x = torch.randn(2, 1, 3)

    assert not torch.equal(built(x), built(x))
    built.eval()
    assert torch.equal(built(x), built(x))
