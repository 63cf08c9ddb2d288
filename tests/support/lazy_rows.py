"""Workloads with row sources that return rows only on request, like rows of files."""

from dataclasses import dataclass, field
from typing import ClassVar

import pandas as pd
import torch
from torch import Tensor, nn

from sluice.data.folds import RowRange
from sluice.data.rows.protocol import DictRows, ModelInput, gather
from sluice.workloads.digits import DigitsWorkload
from sluice.workloads.examples import Examples
from sluice.workloads.workload import Workload


@dataclass(eq=False)
class LazyRows:
    """A row source whose rows are in memory."""

    rows: Tensor | DictRows
    requests: list[int] = field(default_factory=list)
    """Number of rows of each request."""

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Tensor, /) -> ModelInput:
        self.requests.append(len(rows))
        return gather(self.rows, rows)


class LazyDigits(DigitsWorkload):
    """Digits whose images and labels are read row by row."""

    sources: ClassVar[list[LazyRows]] = []

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        examples = super().examples(frame, rows)
        x, y = LazyRows(examples.tensor), LazyRows(examples.targets)
        self.sources.append(x)
        return Examples(x=x, y=y, rows=examples.rows)


class TwoInputs(nn.Module):
    """Classifier with two inputs: pixels, and a mask that selects pixels."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))

    def forward(self, pixels: Tensor, mask: Tensor) -> Tensor:
        return self.layers(pixels * mask)


class DictDigits(DigitsWorkload):
    """Digits with two inputs: pixels, and a mask of the bright pixels."""

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        examples = super().examples(frame, rows)
        pixels = examples.tensor[:, 0]
        x = LazyRows(DictRows({"pixels": pixels, "mask": pixels > 0.05}))
        return Examples(x=x, y=examples.targets, rows=examples.rows)

    def build_model(self, num_features, num_outputs, settings):
        return TwoInputs(settings.hidden)

    def baseline(self, frame, fold):
        return Workload.baseline(self, frame, fold)


class BrokenRow(LazyDigits):
    """Its row source is ``ShortRows``."""

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        examples = super().examples(frame, rows)
        return Examples(x=ShortRows(examples.x.rows), y=examples.targets, rows=examples.rows)


class ShortRows(LazyRows):
    """A source that returns one row fewer than requested."""

    def __getitem__(self, rows: Tensor, /) -> ModelInput:
        return super().__getitem__(rows)[1:]


class DictWithoutWrapper(DigitsWorkload):
    """Returns a dict of tensors instead of a row source."""

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        examples = super().examples(frame, rows)
        return Examples(x={"pixels": examples.tensor}, y=examples.targets, rows=examples.rows)


class DependsOnSplit(LazyDigits):
    """The mean of all images of the split is subtracted from each image."""

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        examples = super().examples(frame, rows)
        centred = examples.x.rows - examples.x.rows.mean()
        return Examples(x=LazyRows(centred), y=examples.y, rows=examples.rows)


class NotFinite(LazyDigits):
    """The images of one class are NaN."""

    scale_inputs = True

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        examples = super().examples(frame, rows)
        x = torch.where(examples.targets[:, None, None] == 3, torch.nan, examples.x.rows)
        return Examples(x=LazyRows(x), y=examples.y, rows=examples.rows)
