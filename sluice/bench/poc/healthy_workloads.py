"""Healthy but unusual workloads, such as losses below 0, rare labels and declared freezing."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from sluice.bench.poc.workloads import (
    Cancer,
    Diabetes,
    DigitImages,
    Digits,
    SklearnWorkload,
    Wine,
    scale_pixels_to_255,
)
from sluice.data.folds import RowRange
from sluice.data.rows.protocol import ModelInput
from sluice.data.schema import Column
from sluice.workloads.examples import Examples


class DeclaredFreezeDiabetes(Diabetes):
    """Declares that the encoder is frozen on purpose."""

    frozen_parameters = ("encoder.*",)


class DeclaredFreezeWine(Wine):
    """Declares that the encoder is frozen on purpose."""

    frozen_parameters = ("encoder.*",)


class NegativeTarget(Diabetes):
    """The negated target; all its values are below 0."""

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        """Return the rows with the target negated."""
        return raw.assign(progression=-raw["progression"])


class GaussianLikelihood(Diabetes):
    """Predicts mean and logarithm of the standard deviation; the loss falls below 0."""

    scale_target = False
    loss_unit = "nats"

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        """Return the rows with the target in thousands."""
        return raw.assign(progression=raw["progression"] / 1000)

    def output_shape(self, y: Tensor) -> tuple[int, ...]:
        """Return the shape of mean and log standard deviation (N, 2)."""
        return (len(y), 2)

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the negative log-likelihood (N,), up to a constant."""
        log_std_N = output[:, 1].clamp(-10, 10)
        return log_std_N + 0.5 * ((y[:, 0] - output[:, 0]) / log_std_N.exp()).square()


class SummedLoss(Diabetes):
    """Sums the losses of the batch instead of averaging them; clipping limits the gradient norm."""

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the sum of the losses."""
        return self.losses(output, y).sum()


class HuberRegression(Diabetes):
    """Regression with the Huber loss, which is linear for large errors."""

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the Huber loss (N,) of targets in units of 50."""
        return nn.functional.huber_loss(output / 50, y / 50, reduction="none")[:, 0]


class FittedRanks(Diabetes):
    """Replaces every measurement by its decile rank in the train rows."""

    def fit(self, train_frame: pd.DataFrame) -> Mapping[str, Any]:
        """Return the deciles of each column in the train rows (D, 9)."""
        values = train_frame[list(self.feature_columns)].to_numpy()
        return {"deciles": np.quantile(values, np.arange(1, 10) / 10, axis=0).T}

    def encode(self, x: ModelInput, state: Mapping[str, Tensor]) -> ModelInput:
        """Return windows of decile ranks, the number of deciles that a value reaches (0 to 9)."""
        assert isinstance(x, Tensor)
        return (x[..., None] >= state["deciles"]).sum(dim=-1).to(x.dtype)


class FlatTarget(Diabetes):
    """Targets of shape (N,), which the model standardises like targets of shape (N, 1)."""

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        """Return windows (N, 1, D) and targets (N,)."""
        examples = super().examples(frame, rows)
        return Examples(x=examples.tensor, y=examples.targets[:, 0], rows=examples.rows)

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """Return squared error (N,)."""
        return (output - y).square()


class UnevenNoise(SklearnWorkload):
    """Synthetic rows with heavy-tailed noise whose scale depends on one of five features."""

    feature_columns = ("level", "slope", "noise", "other", "none")
    target_column = "target"

    def load_rows(self) -> pd.DataFrame:
        """Return 955 random rows, which are the same in every call."""
        rng = np.random.default_rng(3)
        rows = pd.DataFrame(rng.normal(size=(955, 5)), columns=list(self.feature_columns))
        noise = rng.standard_t(3, size=len(rows)) * np.exp(rows["noise"])
        return rows.assign(target=rows["level"] - 0.5 * rows["slope"] + noise)

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the Huber loss (N,)."""
        return nn.functional.huber_loss(output, y, reduction="none")[:, 0]


class RareLabel(Digits):
    """Detects the digit 0. Most zeros are removed, so about 2 % of the labels are 1."""

    num_classes = 2
    num_rows: ClassVar[int] = 1797

    def load_rows(self) -> pd.DataFrame:
        """Return the other digits with label 0, and one in five zeros with label 1."""
        rows = super().load_rows()
        is_zero = rows["digit"] == 0
        is_kept = ~is_zero | (is_zero.cumsum() % 5 == 0)
        return rows[is_kept].assign(digit=is_zero[is_kept].astype(np.int64)).reset_index(drop=True)


class RawPixels(DigitImages):
    """Pixels from 0 to 255, which the network normalises itself."""

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        """Return images with values as in an image file."""
        examples = super().examples(frame, rows)
        return Examples(
            x=scale_pixels_to_255(examples.tensor * 16), y=examples.targets, rows=examples.rows
        )


class WideTable(Digits):
    """64 pixels and 36 sums of neighbours: 100 columns, a few of them constant."""

    feature_columns = (*Digits.feature_columns, *(f"sum_{index}" for index in range(36)))

    def __init__(self, settings: Any = None) -> None:
        super().__init__(settings)
        self.raw_schema = Digits().raw_schema

    def load_rows(self) -> pd.DataFrame:
        """Return the digits."""
        return Digits().load_rows()

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        """Return pixels and sums."""
        pixels = raw[list(Digits.feature_columns)]
        sums = {
            f"sum_{index}": pixels.iloc[:, index] + pixels.iloc[:, index + 1] for index in range(36)
        }
        return raw.assign(**sums)


class ConstantDeclared(Wine):
    """A constant column that is declared as such."""

    feature_columns = (*Wine.feature_columns, "cellar")

    def __init__(self, settings: Any = None) -> None:
        super().__init__(settings)
        self.raw_schema = Wine().raw_schema
        other_features = self.feature_schema.columns[:-2]
        cellar = Column(name="cellar", constant=True)
        self.feature_schema = self.feature_schema.model_copy(
            update={"columns": (*other_features, cellar, self.target)}
        )

    def load_rows(self) -> pd.DataFrame:
        """Return the wines."""
        return Wine().load_rows()

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        """Return the rows with the declared column."""
        return raw.assign(cellar=1.0)


class TwoParameterGroups(Cancer):
    """A lower learning rate for the encoder, and no weight decay for the other layers."""

    def parameter_groups(self, network: nn.Module) -> list[dict[str, Any]]:
        """Return a group for the encoder and one for the other layers."""
        named_parameters = dict(network.named_parameters())
        encoder_parameters = [
            p for name, p in named_parameters.items() if name.startswith("encoder")
        ]
        other_parameters = [
            p for name, p in named_parameters.items() if not name.startswith("encoder")
        ]
        return [
            {"params": encoder_parameters, "rate_share": 0.3},
            {"params": other_parameters, "weight_decay": 0.0},
        ]


class SmoothedLabels(Wine):
    """Smooths labels, so the lowest possible loss is far above 0."""

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """Return smoothed cross-entropy (N,)."""
        return nn.functional.cross_entropy(output, y, reduction="none", label_smoothing=0.1)


class WeightedClasses(Wine):
    """Has classes with different weights in the loss."""

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """Return weighted cross-entropy (N,)."""
        weight = torch.tensor([1.0, 0.5, 2.0])
        return nn.functional.cross_entropy(output, y, weight=weight, reduction="none")
