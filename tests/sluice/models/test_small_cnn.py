"""TRAIN-1: a network by import path, here the SmallCnn of Sluice."""

import pytest
import torch

from sluice.base.errors import SettingsError
from sluice.models.build import build_network
from sluice.models.settings import ModelSettings
from sluice.models.small_cnn import SmallCnn

PATH = "sluice.models.small_cnn:SmallCnn"


def test_network_is_built_by_import_path_and_accepts_flat_images():
    network = build_network(64, 10, ModelSettings(architecture=PATH, hidden=4))

    assert isinstance(network, SmallCnn)
    assert network(torch.rand(3, 64)).shape == network(torch.rand(3, 1, 64)).shape == (3, 10)
    assert network.body[0].out_channels == 4


def test_flat_images_are_reshaped_to_squares():
    """A convolution with one weight below its center returns the pixel of the next row."""
    network = SmallCnn(16, 1, ModelSettings(hidden=1)).eval()
    torch.nn.init.zeros_(network.body[0].weight)
    network.body[0].weight.data[0, 0, 2, 1] = 1.0
    torch.nn.init.zeros_(network.body[0].bias)
    x = torch.arange(16.0)[None]

    shifted = network.body[0](x.reshape(1, 1, 4, 4)).flatten().tolist()

    assert shifted == [*range(4, 16), 0, 0, 0, 0]
    torch.testing.assert_close(network(x), network(x.reshape(1, 1, 16)))


@pytest.mark.parametrize("layers", [1, 3])
def test_layers_sets_the_number_of_wide_convolutions(layers):
    network = SmallCnn(64, 10, ModelSettings(hidden=4, layers=layers))

    channels = [part.out_channels for part in network.body if isinstance(part, torch.nn.Conv2d)]
    assert channels == [4, *[8] * layers]
    assert network(torch.rand(2, 64)).shape == (2, 10)


@pytest.mark.parametrize("pixels", [63, 49])
def test_images_that_are_not_square_and_even_are_rejected(pixels):
    with pytest.raises(SettingsError, match=f"got {pixels} pixels"):
        SmallCnn(pixels, 10, ModelSettings())
