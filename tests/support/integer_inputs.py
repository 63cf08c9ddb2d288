"""Workloads with integer inputs: pixels as uint8, and token ids."""

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from sluice.data.folds import RowRange
from sluice.data.schema import Column, Schema
from sluice.models.settings import ModelSettings
from sluice.workloads.examples import Examples
from sluice.workloads.workload import Workload, WorkloadSettings
from tests.support.digits_cnn import Digits, DigitsNet

WORDS = tuple(f"word_{position}" for position in range(6))
VOCABULARY = 300


class ByteNet(nn.Module):
    """(B, ...) bytes to (B, 10) logits."""

    def __init__(self) -> None:
        super().__init__()
        self.images = DigitsNet(10)

    def forward(self, x: Tensor) -> Tensor:
        return self.images(x.reshape(-1, 1, 8, 8).float() / 16)


class ByteDigits(Digits):
    """Images (N, 1, 8, 8) as uint8."""

    horizon_rows = 0

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        return raw

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        base = super().examples(frame, rows)
        return Examples(x=base.x.to(torch.uint8), y=base.y, rows=base.rows)

    def build_model(
        self, num_features: int, num_outputs: int, settings: ModelSettings
    ) -> nn.Module:
        return ByteNet()


class ByteWindows(ByteDigits):
    """The same images as windows (N, 1, 64), which can be served."""

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        base = super().examples(frame, rows)
        return Examples(x=base.x.reshape(-1, 1, 64), y=base.y, rows=base.rows)


class NoisyBytes(ByteWindows):
    """Labels are shuffled, so that nothing can be learned."""

    def load_rows(self) -> pd.DataFrame:
        rows = super().load_rows()
        return rows.assign(digit=np.random.default_rng(0).permutation(rows["digit"]))


class WordNet(nn.Module):
    """(B, 1, 6) token ids to (B, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.table(x).flatten(1, 2).mean(dim=1))


class Words(Workload):
    """Token ids, int64; the target is the sum of one value per token."""

    settings_type = WorkloadSettings
    raw_schema = Schema(columns=tuple(Column(name=name, kind="int") for name in WORDS))
    feature_schema = Schema(columns=(*raw_schema.columns, Column(name="target")))
    feature_columns = WORDS
    target_column = "target"
    horizon_rows = 0
    scale_inputs = False

    def load_rows(self) -> pd.DataFrame:
        rng = np.random.default_rng(0)
        ids = VOCABULARY * rng.random((3000, len(WORDS))) ** 3
        return pd.DataFrame(ids.astype(np.int64), columns=list(WORDS))

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        worth = np.random.default_rng(1).normal(size=VOCABULARY)
        return raw.assign(target=worth[raw[list(WORDS)].to_numpy()].sum(axis=1))

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        base = super().examples(frame, rows)
        return Examples(x=base.x.long(), y=base.y, rows=base.rows)

    def build_model(
        self, num_features: int, num_outputs: int, settings: ModelSettings
    ) -> nn.Module:
        return WordNet()


class FloatWordNet(WordNet):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.long())


class FloatWords(Words):
    """The same ids as floats, as a client sends them; the network converts them to integers."""

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        return Workload.examples(self, frame, rows)

    def build_model(
        self, num_features: int, num_outputs: int, settings: ModelSettings
    ) -> nn.Module:
        return FloatWordNet()
