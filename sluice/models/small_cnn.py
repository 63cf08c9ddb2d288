"""Small convolutional network for square single-channel pictures."""

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
        settings: The first convolution has ``hidden`` channels, and is followed by pooling that
            halves the side length. Then there are ``layers`` convolutions with twice as many
            channels. ``dropout`` is applied before the linear layer.

    Raises:
        SettingsError: The pictures are not square, or their side length is odd.
    """

    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:
        super().__init__()
        side = math.isqrt(num_features)
        if side**2 != num_features or side % 2:
            raise SettingsError(
                f"SmallCnn requires square pictures with an even side length, got {num_features} "
                "pixels.",
                fix="Crop or pad the pictures, or use another network.",
            )
        self._side = side
        channels = settings.hidden
        widths = [channels, *[2 * channels] * settings.layers]
        self.body = nn.Sequential(
            *_convolution(1, channels),
            nn.MaxPool2d(2),
            *(part for pair in itertools.pairwise(widths) for part in _convolution(*pair)),
            nn.Flatten(),
            nn.Dropout(settings.dropout),
        )
        self.head = nn.Linear(2 * channels * (side // 2) ** 2, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs (B, O)."""
        pictures = x.reshape(len(x), 1, self._side, self._side)
        output: Tensor = self.head(self.body(pictures))
        return output


def _convolution(channels_in: int, channels_out: int) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(channels_in, channels_out, 3, padding=1), nn.ReLU()
