"""The Transformer network: an encoder over the window, read at its last row."""

import math

import torch
from torch import Tensor, nn

from sluice.models.settings import ModelSettings

_WIDENING = 4
"""Hidden units of the two-layer map inside a layer, as a multiple of the width."""

_LONGEST_WAVE = 10_000.0


class Transformer(nn.Module):
    """Let every row of the window look at every other, and predict from the last row.

    Shape legend: B = examples, L = sequence length [rows], D = features, H = width, O = outputs.

    The last row is read, not the mean over rows: it is the row the prediction is made at, and
    attention has already gathered there what it needs of the others. No causal mask: all rows of
    a window are known when the prediction is made.

    Positions are sines of the distance to the last row, not learned vectors: their number is no
    part of the weights, so the same weights serve any ``seq_len``, and the last row has the same
    position whatever the length. Each layer normalises before its two parts, which needs no
    warmup to be stable; hence one more normalisation at the end.

    Args:
        num_features: D.
        num_outputs: O.
        settings: ``hidden`` is H, divided among ``heads``; ``dropout`` acts inside the layers.

    Cost:
        O(L^2 H + L H^2) time per example and layer.

    Source:
        Vaswani et al. (2017), "Attention Is All You Need", NeurIPS; normalisation first: Xiong et
        al. (2020), "On Layer Normalization in the Transformer Architecture", ICML.
    """

    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:
        super().__init__()
        width = settings.hidden
        self.width = width
        self.entry = nn.Linear(num_features, width)
        # nn.TransformerEncoder copies one layer, initial weights included; these differ.
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width,
                settings.heads,
                dim_feedforward=_WIDENING * width,
                dropout=settings.dropout,
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )
            for _ in range(settings.layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return predictions (B, O) for windows (B, L, D)."""
        rows_BLH = self.entry(x)
        rows_BLH = rows_BLH + positions(x.shape[1], self.width, device=x.device).to(rows_BLH.dtype)
        for layer in self.layers:
            rows_BLH = layer(rows_BLH)
        output: Tensor = self.head(self.norm(rows_BLH[:, -1]))
        return output


def positions(length: int, width: int, *, device: torch.device) -> Tensor:
    """Return the position vectors (L, H): sines, then cosines, of the distance to the last row.

    The wave lengths rise from 2 pi rows to almost 10,000 times that.
    """
    num_waves = (width + 1) // 2
    wave_W = torch.arange(num_waves, dtype=torch.float32, device=device)
    distance_L = torch.arange(length - 1, -1, -1, dtype=torch.float32, device=device)
    angle_LW = torch.outer(distance_L, torch.exp(-math.log(_LONGEST_WAVE) / num_waves * wave_W))
    return torch.cat((angle_LW.sin(), angle_LW.cos()), dim=1)[:, :width]
