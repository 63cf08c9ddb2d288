"""A workload and networks whose losses can be computed manually."""

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from sluice.data.folds import Fold, RowRange
from sluice.data.schema import Column, Schema
from sluice.training.members import Member
from sluice.workloads.workload import Workload


class Counting(Workload):
    """Workload whose feature and target in row i are both i."""

    raw_schema = feature_schema = Schema(columns=(Column(name="x"), Column(name="y")))
    feature_columns = ("x",)
    target_column = "y"

    def load_rows(self) -> pd.DataFrame:
        count_N = np.arange(40, dtype=float)
        index = pd.date_range("2020-01-01", periods=40, name="date")
        return pd.DataFrame({"x": count_N, "y": count_N}, index=index)

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        return raw

    def metrics(self, output, examples, frame):
        loss = float(self.losses(output, examples.y).mean())
        return {"loss": loss, "first_row": float(frame["y"].iloc[examples.rows[0]])}


class Shifted(nn.Module):
    """Network that predicts the feature plus a constant, with dropout in train mode."""

    def __init__(self, shift: float) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.tensor(float(shift)))
        self.drop = nn.Dropout(0.9)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(x[:, -1] + self.shift)


FOLDS = (
    Fold(
        fold_id=0,
        train=RowRange(start=0, stop=10),
        val=RowRange(start=10, stop=14),
        test=RowRange(start=16, stop=24),
    ),
    Fold(
        fold_id=1,
        train=RowRange(start=0, stop=16),
        val=RowRange(start=18, stop=22),
        test=RowRange(start=24, stop=40),
    ),
)


def make_member(seed: int, fold_id: int, *, through: str = "2020-01-01T00:00:00") -> Member:
    return Member(
        seed=seed,
        fold_id=fold_id,
        weights=f"w{seed}{fold_id}",
        event_log="log",
        best_epoch=1,
        epochs_run=1,
        train_loss=0.0,
        val_loss=0.0,
        test_metrics={},
        trained_through=through,
        seconds=0.0,
    )
