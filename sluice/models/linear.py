"""The linear network: the simplest candidate, and the one others must beat."""

import torch
from torch import Tensor, nn


class LastRowLinear(nn.Module):
    """A linear map of the window's last row and of the window's mean.

    Shape legend: B = examples, L = sequence length [rows], D = features, O = outputs.

    The window is not flattened: its length is no part of the weights, so the same weights serve
    any ``seq_len``. The last row says where things are, the mean says where they come from.
    """

    def __init__(self, num_features: int, num_outputs: int) -> None:
        super().__init__()
        self.head = nn.Linear(2 * num_features, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return predictions (B, O) for windows (B, L, D)."""
        output: Tensor = self.head(torch.cat((x[:, -1], x.mean(dim=1)), dim=-1))
        return output
