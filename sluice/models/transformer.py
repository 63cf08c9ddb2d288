"""Transformer encoder over the window that predicts from its last row."""

import math

import torch
from torch import Tensor, nn

from sluice.models.settings import ModelSettings

_FEEDFORWARD_RATIO = 4
"""Number of hidden units of a layer's feedforward network, as a multiple of the width."""

_MAX_WAVELENGTH = 10_000.0
"""Upper bound of wavelength / (2 pi) for the waves of the position encodings [rows]."""


class Transformer(nn.Module):
    """Transformer encoder with self-attention over the window and a linear head on its last row.

    Shape legend: B = examples, L = sequence length [rows], D = features, H = width, O = outputs.

    The head uses the last row instead of the mean over rows. The prediction is for this row, and
    attention has already transferred the information of the other rows to it. There is no causal
    mask, because all rows of a window are known at prediction time.

    Position encodings are not learned, but sines and cosines of the distance to the last row. So
    the same weights can be used with any ``seq_len``, and the last row always has the same
    encoding. Layers are pre-norm, which is stable without warmup and requires one more
    normalisation after the last layer.

    Args:
        num_features: D.
        num_outputs: O.
        settings: ``hidden`` is H, split among ``heads``; ``dropout`` is applied inside the layers.

    Cost:
        O(L^2 H + L H^2) time per example and layer.

    Source:
        Vaswani et al. (2017), "Attention Is All You Need", NeurIPS; for pre-norm layers: Xiong et
        al. (2020), "On Layer Normalization in the Transformer Architecture", ICML.
    """

    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:
        super().__init__()
        width = settings.hidden
        self.width = width
        self.entry = nn.Linear(num_features, width)
        # nn.TransformerEncoder is not used, because it gives all layers the same initial weights.
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width,
                settings.heads,
                dim_feedforward=_FEEDFORWARD_RATIO * width,
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
        rows_BLH = rows_BLH + encode_positions(x.shape[1], self.width, device=x.device).to(
            rows_BLH.dtype
        )
        for layer in self.layers:
            rows_BLH = layer(rows_BLH)
        output: Tensor = self.head(self.norm(rows_BLH[:, -1]))
        return output


def encode_positions(length: int, width: int, *, device: torch.device) -> Tensor:
    """Return the position encodings (L, H): sines, then cosines, of the distance to the last row.

    The wavelengths increase from 2 pi rows to almost 10,000 times as many rows.
    """
    num_waves = (width + 1) // 2
    wave_W = torch.arange(num_waves, dtype=torch.float32, device=device)
    distance_L = torch.arange(length - 1, -1, -1, dtype=torch.float32, device=device)
    angle_LW = torch.outer(distance_L, torch.exp(-math.log(_MAX_WAVELENGTH) / num_waves * wave_W))
    return torch.cat((angle_LW.sin(), angle_LW.cos()), dim=1)[:, :width]
