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
VOCABULARY_SIZE = 300


class ByteNet(nn.Module):
    """Maps 64 bytes per row, (B, ...), to logits (B, 10)."""

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
    """The images of ``ByteDigits`` as windows (N, 1, 64), which a server accepts."""

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        base = super().examples(frame, rows)
        return Examples(x=base.x.reshape(-1, 1, 64), y=base.y, rows=base.rows)


class NoisyBytes(ByteWindows):
    """The labels are shuffled, so that nothing can be learned."""

    def load_rows(self) -> pd.DataFrame:
        rows = super().load_rows()
        return rows.assign(digit=np.random.default_rng(0).permutation(rows["digit"]))


class WordNet(nn.Module):
    """Maps token ids (B, 1, 6) to outputs (B, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY_SIZE, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x).flatten(1, 2).mean(dim=1))


class Words(Workload):
    """Inputs are token ids (int64). Each token has a value, and the target is their sum."""

    settings_type = WorkloadSettings
    raw_schema = Schema(columns=tuple(Column(name=name, kind="int") for name in WORDS))
    feature_schema = Schema(columns=(*raw_schema.columns, Column(name="target")))
    feature_columns = WORDS
    target_column = "target"
    horizon_rows = 0
    scale_inputs = False

    def load_rows(self) -> pd.DataFrame:
        rng = np.random.default_rng(0)
        ids = VOCABULARY_SIZE * rng.random((3000, len(WORDS))) ** 3
        return pd.DataFrame(ids.astype(np.int64), columns=list(WORDS))

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        token_values = np.random.default_rng(1).normal(size=VOCABULARY_SIZE)
        return raw.assign(target=token_values[raw[list(WORDS)].to_numpy()].sum(axis=1))

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
    """Token ids as floats, as clients send them. The network converts the ids to integers."""

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        return Workload.examples(self, frame, rows)

    def build_model(
        self, num_features: int, num_outputs: int, settings: ModelSettings
    ) -> nn.Module:
        return FloatWordNet()
