"""TRAIN-1: a user-defined network by import path, here the one shipped with Sluice."""

import pytest
import torch

from sluice.base.errors import SettingsError
from sluice.models.build import build_network
from sluice.models.settings import ModelSettings
from sluice.models.small_cnn import SmallCnn

PATH = "sluice.models.small_cnn:SmallCnn"


def test_it_is_built_by_import_path_and_takes_pictures_row_by_row():
    network = build_network(64, 10, ModelSettings(architecture=PATH, hidden=4))

    assert isinstance(network, SmallCnn)
    assert network(torch.rand(3, 64)).shape == network(torch.rand(3, 1, 64)).shape == (3, 10)
    assert network.body[0].out_channels == 4


def test_neighbours_above_and_below_are_near():
    """Pixels come back as the square they were: a convolution sees the row below."""
    network = SmallCnn(16, 1, ModelSettings(hidden=1)).eval()
    torch.nn.init.zeros_(network.body[0].weight)
    network.body[0].weight.data[0, 0, 2, 1] = 1.0
    torch.nn.init.zeros_(network.body[0].bias)
    x = torch.arange(16.0)[None]

    seen = network.body[0](x.reshape(1, 1, 4, 4)).flatten().tolist()

    assert seen == [*range(4, 16), 0, 0, 0, 0]
    torch.testing.assert_close(network(x), network(x.reshape(1, 1, 16)))


@pytest.mark.parametrize("layers", [1, 3])
def test_layers_are_the_wide_convolutions(layers):
    network = SmallCnn(64, 10, ModelSettings(hidden=4, layers=layers))

    channels = [part.out_channels for part in network.body if isinstance(part, torch.nn.Conv2d)]
    assert channels == [4, *[8] * layers]
    assert network(torch.rand(2, 64)).shape == (2, 10)


@pytest.mark.parametrize("pixels", [63, 49])
def test_pictures_that_are_not_square_and_even_are_rejected(pixels):
    with pytest.raises(SettingsError, match=f"got {pixels} pixels"):
        SmallCnn(pixels, 10, ModelSettings())
