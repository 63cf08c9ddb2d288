"""Problems with a known good learning rate: a quadratic, a linear problem and pure noise."""

import numpy as np
import torch
from torch import Tensor, nn

from sluice.workloads.examples import Examples


def examples(num_rows: int, *, length: int = 1, signal: float = 1.0, seed: int = 3) -> Examples:
    """Return windows of three features; the target is the first row's first feature plus noise."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(num_rows, length, 3, generator=rng)
    noise = torch.randn(num_rows, 1, generator=rng)
    y = signal * x[:, 0, :1] + (1 - signal) * noise
    return Examples(x=x, y=y, rows=np.arange(num_rows))


class Quadratic(nn.Module):
    """One weight, initially 1. The output is ``curvature / 2`` times its square."""

    def __init__(self, curvature: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.curvature = curvature

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * self.curvature * self.weight.square().expand(len(x))


def output_mean(output: Tensor, _: Tensor) -> Tensor:
    return output.mean()


def squared_error(output: Tensor, y: Tensor) -> Tensor:
    return (output - y).square().mean()
