"""A workload without rows, for checks that take examples directly."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from sluice.data.schema import Schema
from sluice.models.settings import ModelSettings
from sluice.workloads.examples import Examples
from sluice.workloads.workload import Workload


class Plain(Workload):
    """A workload whose network, losses and output shape are arguments of its constructor."""

    raw_schema = feature_schema = Schema(columns=())
    feature_columns = ()
    target_column = "y"
    scale_inputs = False
    scale_target = False

    def __init__(
        self,
        *,
        network: Callable[[int, int], nn.Module] = nn.Linear,
        losses: Callable[[Tensor, Tensor], Tensor] | None = None,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
        shape: Callable[[Tensor], tuple[int, ...]] | None = None,
        scale_target: bool = False,
    ) -> None:
        super().__init__()
        self.network, self.custom_losses, self.custom_loss = network, losses, loss
        self.shape, self.scale_target = shape, scale_target

    def load_rows(self) -> pd.DataFrame:
        return pd.DataFrame()

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        return raw

    def build_model(
        self,
        num_features: int,
        num_outputs: int,
        settings: ModelSettings,
    ) -> nn.Module:
        return self.network(num_features, num_outputs)

    def output_shape(self, y: Tensor) -> tuple[int, ...]:
        return super().output_shape(y) if self.shape is None else self.shape(y)

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        return (
            super().losses(output, y)
            if self.custom_losses is None
            else self.custom_losses(output, y)
        )

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return super().loss(output, y) if self.custom_loss is None else self.custom_loss(output, y)


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Return normally distributed random numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def examples(x: Tensor, y: Tensor) -> Examples:
    return Examples(x=x, y=y, rows=np.arange(len(x)))


def digits() -> Examples:
    """Return handwritten digits: images (N, 1, 8, 8) with values in 0..1, and class numbers."""
    from sklearn.datasets import load_digits

    data = load_digits()
    x = torch.tensor(data.images[:1200], dtype=torch.float32)[:, None] / 16
    return examples(x, torch.tensor(data.target[:1200]))
