"""A small convolutional network for square pictures of one channel."""

import math

from torch import Tensor, nn

from sluice.errors import SettingsError
from sluice.models.settings import ModelSettings


class SmallCnn(nn.Module):
    """Two convolutions and a linear layer, from (B, ..., D) pixels to (B, O).

    Shape legend: B = batch, D = pixels row by row, O = outputs.

    Args:
        num_features: D, the square of an even side.
        num_outputs: O.
        settings: ``hidden`` channels after the first convolution, twice as many after the second;
            ``dropout`` before the last layer. There are two convolutions, whatever ``layers``
            says; other than 1 is refused.

    Raises:
        SettingsError: The pictures are not square or their side is odd, or ``layers`` is not 1.
    """

    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:
        super().__init__()
        side = math.isqrt(num_features)
        if side**2 != num_features or side % 2 or settings.layers != 1:
            raise SettingsError(
                f"SmallCnn takes square pictures of an even side and layers 1, got {num_features} "
                f"pixels and layers {settings.layers}.",
                fix="Cut or pad the pictures, leave out model.layers, or name another network.",
            )
        self._side = side
        channels = settings.hidden
        self.body = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(channels, 2 * channels, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(settings.dropout),
        )
        self.head = nn.Linear(2 * channels * (side // 2) ** 2, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs (B, O)."""
        pictures = x.reshape(len(x), 1, self._side, self._side)
        output: Tensor = self.head(self.body(pictures))
        return output
