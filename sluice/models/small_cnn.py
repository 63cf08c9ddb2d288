"""Small convolutional network for square single-channel images."""

import itertools
import math

from torch import Tensor, nn

from sluice.base.errors import SettingsError
from sluice.models.settings import ModelSettings


class SmallCnn(nn.Module):
    """Network of convolutions and a linear layer that maps pixels (B, ..., D) to outputs (B, O).

    Shape legend: B = batch, D = pixels row by row, O = outputs.

    Args:
        num_features: D, the square of an even side length.
        num_outputs: O.
        settings: The first convolution has ``hidden`` channels. Then pooling halves the side
            length, and ``layers`` convolutions with twice as many channels follow. ``dropout`` is
            applied before the linear layer.

    Raises:
        SettingsError: The images are not square, or their side length is odd.
    """

    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:
        super().__init__()
        side = math.isqrt(num_features)
        if side**2 != num_features or side % 2:
            raise SettingsError(
                f"SmallCnn requires square images with an even side length, got {num_features} "
                "pixels.",
                fix="Crop or pad the images, or use another network.",
            )
        self._side = side
        channels = [settings.hidden, *[2 * settings.hidden] * settings.layers]
        self.body = nn.Sequential(
            *_convolution(1, settings.hidden),
            nn.MaxPool2d(2),
            *(layer for pair in itertools.pairwise(channels) for layer in _convolution(*pair)),
            nn.Flatten(),
            nn.Dropout(settings.dropout),
        )
        self.head = nn.Linear(channels[-1] * (side // 2) ** 2, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs (B, O)."""
        images = x.reshape(len(x), 1, self._side, self._side)
        output: Tensor = self.head(self.body(images))
        return output


def _convolution(channels_in: int, channels_out: int) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(channels_in, channels_out, 3, padding=1), nn.ReLU()
