"""Small convolutional network for images of any size."""

import itertools

import torch
from torch import Tensor, nn

from sluice.models.settings import ModelSettings


class ImageCnn(nn.Module):
    """Network of convolutions with pooling, which maps images (B, C, H, W) to outputs (B, O).

    Shape legend: B = batch, C = channels of an image, H, W = height and width, O = outputs.

    After the last convolution the mean and the maximum over all positions are taken, so the same
    weights fit images of any height and width from 2**(``layers`` + 1) pixels.

    Args:
        num_features: C.
        num_outputs: O.
        settings: The first of ``layers`` + 1 convolutions has ``hidden`` channels, and each further
            one twice as many as the previous; each halves height and width. ``dropout`` is applied
            before the linear layer.
    """

    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:
        super().__init__()
        widths = [num_features, *(settings.hidden * 2**n for n in range(settings.layers + 1))]
        self.body = nn.Sequential(
            *(
                part
                for channels_in, channels_out in itertools.pairwise(widths)
                for part in (
                    nn.Conv2d(channels_in, channels_out, 3, padding=1),
                    nn.ReLU(),
                    nn.MaxPool2d(2),
                )
            )
        )
        self.drop = nn.Dropout(settings.dropout)
        self.head = nn.Linear(2 * widths[-1], num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs (B, O) of uint8 pixels from 0 to 255, or floats from 0 to 1."""
        pixels = x.float() if x.is_floating_point() else x.float() / 255
        # The pixels are centred, because with inputs from 0 to 1 many units of the first layer
        # would initially have outputs of one sign only.
        hidden = self.body(pixels * 2 - 1)
        pooled = torch.cat([hidden.mean(dim=(2, 3)), hidden.amax(dim=(2, 3))], dim=1)
        output: Tensor = self.head(self.drop(pooled))
        return output
