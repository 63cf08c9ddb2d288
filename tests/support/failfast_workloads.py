"""A small healthy workload, and variants with one planted defect each."""

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from sluice.data.folds import RowRange
from sluice.data.schema import Column, Schema
from sluice.models.settings import ModelSettings
from sluice.workloads.examples import Examples
from sluice.workloads.workload import Workload, WorkloadSettings


class SignalSettings(WorkloadSettings):
    seq_len: int = 4
    num_rows: int = 700


class Signals(Workload):
    """Healthy: the target is a noisy sum of two of three features."""

    settings_type = SignalSettings
    raw_schema = Schema(columns=(Column(name="a"),))
    feature_schema = Schema(columns=(Column(name="a"), Column(name="target")))
    feature_columns = ("a", "b", "c")
    target_column = "target"

    def load_rows(self) -> pd.DataFrame:
        values = np.random.default_rng(5).normal(size=(self.settings.num_rows, 4))
        return pd.DataFrame(values, columns=["a", "b", "c", "noise"])

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        return raw.assign(target=7 + 3 * (raw["a"] - raw["b"] + 0.5 * raw["noise"]))


class Net(nn.Module):
    """Two linear layers over the window's last row. Subclasses plant defects."""

    def __init__(self, num_features: int, num_outputs: int, hidden: int) -> None:
        super().__init__()
        self.first = nn.Linear(num_features, hidden)
        self.second = nn.Linear(hidden, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.between(torch.tanh(self.first(x[:, -1]))))

    def between(self, hidden: Tensor) -> Tensor:
        """Return the input of the second layer for the activations of the first layer."""
        return hidden


class OwnNet(Signals):
    """Healthy, with a user-defined network."""

    net: type[Net] = Net

    def build_model(
        self, num_features: int, num_outputs: int, settings: ModelSettings
    ) -> nn.Module:
        return self.net(num_features, num_outputs, settings.hidden)


class WrongInputSize(OwnNet):
    def build_model(
        self, num_features: int, num_outputs: int, settings: ModelSettings
    ) -> nn.Module:
        return Net(num_features + 1, num_outputs, settings.hidden)


class FlatNet(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).squeeze(-1)


class FlatOutput(OwnNet):
    """Returns (B,) instead of (B, 1): broadcasting silently produces a (B, B) loss."""

    net = FlatNet


class NanWeights(OwnNet):
    def build_model(
        self, num_features: int, num_outputs: int, settings: ModelSettings
    ) -> nn.Module:
        net = Net(num_features, num_outputs, settings.hidden)
        with torch.no_grad():
            net.first.weight[0, 0] = math.nan
        return net


class BrokenNet(Net):
    def forward(self, x: Tensor) -> Tensor:
        return x.no_such_thing()


class BrokenModel(OwnNet):
    net = BrokenNet


class DetachedNet(Net):
    def between(self, hidden: Tensor) -> Tensor:
        return hidden.detach()


class DetachInTheMiddle(OwnNet):
    net = DetachedNet


class UnusedNet(Net):
    def __init__(self, num_features: int, num_outputs: int, hidden: int) -> None:
        super().__init__(num_features, num_outputs, hidden)
        self.spare = nn.Linear(2, 2)


class UnusedLayer(OwnNet):
    net = UnusedNet


class DeadNet(Net):
    def between(self, hidden: Tensor) -> Tensor:
        return torch.relu(hidden - 5)


class DeadLayer(OwnNet):
    """The first layer's gradient is exactly 0: the ReLU outputs 0 for every unit."""

    net = DeadNet


class SqrtNet(Net):
    def between(self, hidden: Tensor) -> Tensor:
        return (hidden * 0).sqrt()


class NanGradients(OwnNet):
    """The output is finite and the gradient NaN: the slope of a square root at 0 is infinite."""

    net = SqrtNet


class AllFrozen(OwnNet):
    def build_model(
        self, num_features: int, num_outputs: int, settings: ModelSettings
    ) -> nn.Module:
        return super().build_model(num_features, num_outputs, settings).requires_grad_(False)


class FirstFrozen(OwnNet):
    """Healthy: the first layer is intentionally frozen."""

    def build_model(
        self, num_features: int, num_outputs: int, settings: ModelSettings
    ) -> nn.Module:
        net = Net(num_features, num_outputs, settings.hidden)
        net.first.requires_grad_(False)
        return net


class LossPerExample(Signals):
    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return self.losses(output, y)


class LossesReduced(Signals):
    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        return (output - y).square().mean()


class LossAsFloat(Signals):
    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return super().loss(output, y).item()  # type: ignore[return-value]


class LossIsNan(Signals):
    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return (output - output.detach() - 1).log().mean()


class LossIgnoresOutput(Signals):
    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return y.mean()


class NegatedLoss(Signals):
    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return -self.losses(output, y).mean()


class LossRaises(Signals):
    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        raise KeyError("no such class weight")


class SteepNet(Net):
    """A large factor on small weights: the loss is ordinary, the gradients are in the thousands."""

    def __init__(self, num_features: int, num_outputs: int, hidden: int) -> None:
        super().__init__(num_features, num_outputs, hidden)
        with torch.no_grad():
            self.second.weight /= 1e5

    def between(self, hidden: Tensor) -> Tensor:
        return 1e5 * hidden


class Steep(OwnNet):
    net = SteepNet


class HugeLoss(Signals):
    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        return 1e6 * super().losses(output, y)


class SelectsLast(Signals):
    def select_epoch(self, scores: Mapping[int, float]) -> int:
        return max(scores)


class NoExamples(Signals):
    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        raise ValueError("the window is empty")
