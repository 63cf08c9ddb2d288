"""Small convolutional network for images of any size."""

import itertools

import torch
from torch import Tensor, nn

from sluice.models.settings import ModelSettings


class ImageCnn(nn.Module):
    """Network of convolutions with pooling, which maps images (B, C, H, W) to outputs (B, O).

    Shape legend: B = batch, C = channels of an image, H, W = height and width, O = outputs.

    The linear layer receives the mean and the maximum of each channel over all positions. So the
    same weights can be used for images of any height and width from 2**(``layers`` + 1) pixels.

    Args:
        num_features: C.
        num_outputs: O.
        settings: There are ``layers`` + 1 convolutions. The first has ``hidden`` channels, and each
            further convolution has twice as many as the previous. After each convolution, pooling
            halves height and width. ``dropout`` is applied before the linear layer.
    """

    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:
        super().__init__()
        channels = [num_features, *(settings.hidden * 2**i for i in range(settings.layers + 1))]
        self.body = nn.Sequential(
            *(
                layer
                for channels_in, channels_out in itertools.pairwise(channels)
                for layer in (
                    nn.Conv2d(channels_in, channels_out, 3, padding=1),
                    nn.ReLU(),
                    nn.MaxPool2d(2),
                )
            )
        )
        self.drop = nn.Dropout(settings.dropout)
        self.head = nn.Linear(2 * channels[-1], num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs (B, O) of uint8 pixels from 0 to 255, or floats from 0 to 1."""
        pixels = x.float() if x.is_floating_point() else x.float() / 255
        # The pixels are scaled to -1 to 1. With inputs from 0 to 1, many units of the first layer
        # would initially have outputs of one sign only.
        hidden = self.body(pixels * 2 - 1)
        pooled = torch.cat([hidden.mean(dim=(2, 3)), hidden.amax(dim=(2, 3))], dim=1)
        output: Tensor = self.head(self.drop(pooled))
        return output
