"""A user's workload: handwritten digits and a small convolutional network.

``Digits`` is healthy. Each of its subclasses has one common mistake.
"""

from collections.abc import Mapping

import pandas as pd
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from sluice.data.folds import RowRange
from sluice.data.schema import Column, Schema
from sluice.models.settings import ModelSettings
from sluice.workloads.examples import Examples
from sluice.workloads.workload import Workload

PIXELS = tuple(f"pixel_{row}_{column}" for row in range(8) for column in range(8))
LABEL = Column(name="digit", kind="int", description="0 to 9.")


class DigitsNet(nn.Module):
    """Maps images (B, 1, 8, 8) to logits (B, num_classes)."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.1),
        )
        self.head = nn.Linear(32 * 4 * 4, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Digits(Workload):
    """1,797 images of 8 x 8 pixels; rows are independent."""

    raw_schema = Schema(columns=(*(Column(name=name) for name in PIXELS), LABEL))
    feature_schema = raw_schema
    feature_columns = PIXELS
    target_column = LABEL.name
    loss_unit = "nats"
    scale_inputs = False
    scale_target = False

    def load_rows(self) -> pd.DataFrame:
        images, digits = load_digits(return_X_y=True)
        return pd.DataFrame(images, columns=list(PIXELS)).assign(digit=digits)

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        return raw.assign(**{name: raw[name] / 16 for name in PIXELS})

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        selected = frame.iloc[rows.start : rows.stop]
        x = torch.tensor(selected[list(PIXELS)].to_numpy("float32")).reshape(-1, 1, 8, 8)
        y = torch.tensor(selected["digit"].to_numpy("int64"))
        return Examples(x=x, y=y, rows=rows.positions())

    def build_model(
        self, num_features: int, num_outputs: int, settings: ModelSettings
    ) -> nn.Module:
        return DigitsNet(num_outputs)

    def output_shape(self, y: Tensor) -> tuple[int, ...]:
        return (len(y), 10)

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output, y, reduction="none")

    def metrics(
        self, output: Tensor, examples: Examples, frame: pd.DataFrame
    ) -> Mapping[str, float]:
        accuracy = (output.argmax(dim=1) == examples.y).double().mean()
        return {"loss": float(self.losses(output, examples.y).mean()), "accuracy": float(accuracy)}


class LabelAmongFeatures(Digits):
    """Passes the label to the network, because its column was not dropped."""

    feature_columns = (*PIXELS, "digit")


class FrozenBody(Digits):
    """Freezes the convolutions, as if an experiment had not been undone."""

    def build_model(
        self, num_features: int, num_outputs: int, settings: ModelSettings
    ) -> nn.Module:
        net = DigitsNet(num_outputs)
        net.body.requires_grad_(False)
        return net


class ShuffledLabels(Digits):
    """Sorts the images and shuffles the labels, so that the labels do not fit the images."""

    def load_rows(self) -> pd.DataFrame:
        rows = super().load_rows()
        pixels = rows[list(PIXELS)].sort_values(list(PIXELS), ignore_index=True)
        return pixels.assign(digit=rows["digit"].sample(frac=1, random_state=0).to_numpy())


class LabelOutOfRange(Digits):
    """Numbers the classes from 1 to 10, so that the network has no output for label 10."""

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        return super().compute_features(raw).assign(digit=raw["digit"] + 1)
