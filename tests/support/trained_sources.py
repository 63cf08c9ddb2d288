"""Row sources that compute their rows, and workloads that train on them.

The loss of each workload calls ``FAULT``. Tests replace ``FAULT`` in a forked process, for example
to end the process at a chosen step.
"""

import os
import signal
import subprocess
from collections.abc import Callable

import numpy as np
import pandas as pd
import torch
from pydantic import Field
from torch import Tensor, nn

from sluice.data.folds import FoldSettings
from sluice.data.schema import Column, Schema
from sluice.workloads.augmentation import draw_uniform
from sluice.workloads.examples import Examples
from sluice.workloads.workload import Workload, WorkloadSettings

VOCABULARY = 50


class TokenSource:
    """Rows of "ids" and "mask", each (B, length of the longest requested row)."""

    def __init__(self, start: int, num_rows: int) -> None:
        self.lengths = 3 + (np.arange(start, start + num_rows) * 7) % 13
        self._start, self.num_rows = start, num_rows
        self.requested_rows: list[list[int]] = []

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, rows: Tensor) -> dict[str, Tensor]:
        self.requested_rows.append(rows.tolist())
        lengths = torch.from_numpy(self.lengths)[rows]
        position = torch.arange(int(lengths.max()))
        mask = position < lengths[:, None]
        ids = ((rows + self._start)[:, None] * 31 + position * 17) % VOCABULARY
        return {"ids": ids * mask, "mask": mask}


class ImageSource:
    """Rows of images, (B, 1, 8, 8) of uint8."""

    def __init__(self, start: int, num_rows: int) -> None:
        self._start, self.num_rows = start, num_rows

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, rows: Tensor) -> Tensor:
        pixels = (rows + self._start)[:, None] * 37 + torch.arange(64) * 11
        return (pixels % 251).to(torch.uint8).reshape(-1, 1, 8, 8)


class TokenNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 6)
        self.drop, self.out = nn.Dropout(0.2), nn.Linear(6, 1)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        weight = mask[:, :, None].float()
        return self.out(self.drop((self.embedding(ids) * weight).sum(1) / weight.sum(1)))


class ImageNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(108, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.float() / 255)


class RowSourceSettings(WorkloadSettings):
    folds: FoldSettings = FoldSettings(num_folds=1, embargo_rows=2)
    num_rows: int = Field(700, ge=1)


class _RowSourceWorkload(Workload):
    settings_type = RowSourceSettings
    settings: RowSourceSettings
    raw_schema = Schema(columns=(Column(name="target"),))
    feature_schema = Schema(columns=(Column(name="target"),))
    feature_columns = ("target",)
    target_column = "target"
    scale_inputs = False
    source: type

    def load_rows(self) -> pd.DataFrame:
        row = np.arange(self.settings.num_rows)
        return pd.DataFrame({"target": np.sin(row * 0.37) + (row % 5) * 0.1})

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        return raw

    def examples(self, frame, rows) -> Examples:
        target = frame["target"].to_numpy(np.float32)[rows.start : rows.stop, None].copy()
        return Examples(
            x=self.source(rows.start, len(rows)),
            y=torch.from_numpy(target),
            rows=np.arange(rows.start, rows.stop),
        )

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        FAULT()
        return super().loss(output, y)


class TokenWorkload(_RowSourceWorkload):
    source = TokenSource

    def build_model(self, num_features, num_outputs, settings) -> nn.Module:
        return TokenNetwork()


class ImageWorkload(_RowSourceWorkload):
    source = ImageSource

    def build_model(self, num_features, num_outputs, settings) -> nn.Module:
        return ImageNetwork()

    def augment(self, x, y, seeds):
        mirrored = draw_uniform(seeds, 1) < 0.5
        return torch.where(mirrored[:, :, None, None], x.flip(-1), x), y


class TableWorkload(_RowSourceWorkload):
    """Windows of a table in memory."""

    def build_model(self, num_features, num_outputs, settings) -> nn.Module:
        return nn.Sequential(
            nn.Flatten(), nn.Linear(1, 6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, 1)
        )

    def examples(self, frame, rows) -> Examples:
        return Workload.examples(self, frame, rows)


def nothing() -> None:
    pass


FAULT: Callable[[], None] = nothing
"""Function that the workloads call whenever they compute a loss."""


class SignalAtStep:
    """Sends a signal in the call of the loss with number ``step``.

    The signal goes to this process, or to its process group if ``group``.
    """

    def __init__(self, sent_signal: signal.Signals, step: int, *, group: bool = False) -> None:
        self.sent_signal, self.steps_left, self.group = sent_signal, step, group

    def __call__(self) -> None:
        self.steps_left -= 1
        if self.steps_left == 0:
            if self.group:
                # Another process sends the signal, because torch's loader processes handle a
                # SIGTERM from their parent in a special way.
                command = f"kill -{self.sent_signal.name[3:]} -{os.getpgrp()}"
                subprocess.run(["/bin/sh", "-c", command], check=False)
            else:
                os.kill(os.getpid(), self.sent_signal)
