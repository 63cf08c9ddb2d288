"""Linear network, the simplest built-in architecture."""

import torch
from torch import Tensor, nn


class LastRowLinear(nn.Module):
    """Linear function of the window's last row and the window's mean.

    Shape legend: B = examples, L = sequence length [rows], D = features, O = outputs.

    The window is not flattened, so the same weights can be used with any ``seq_len``. The last row
    provides the current values, and the mean provides the recent level.
    """

    def __init__(self, num_features: int, num_outputs: int) -> None:
        super().__init__()
        self.head = nn.Linear(2 * num_features, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return predictions (B, O) for windows (B, L, D)."""
        output: Tensor = self.head(torch.cat((x[:, -1], x.mean(dim=1)), dim=-1))
        return output
