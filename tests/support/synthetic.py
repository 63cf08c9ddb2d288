"""A small workload that predicts the next value of a noisy sine, and can fail in its loss."""

import os
import signal
import time
from collections.abc import Mapping

import numpy as np
import pandas as pd
from pydantic import Field
from torch import Tensor

from sluice.data.folds import FoldSettings
from sluice.data.schema import Column, Schema
from sluice.workloads.examples import Examples
from sluice.workloads.workload import Workload, WorkloadSettings


class SineSettings(WorkloadSettings):
    seq_len: int = Field(8, ge=1)
    folds: FoldSettings = FoldSettings(num_folds=2, embargo_rows=2)
    num_rows: int = Field(400, ge=1)
    noise: float = Field(0.05, ge=0)
    raise_in_loss: bool = Field(False, description="Whether the loss raises an error.")
    kill_at_loss: int = Field(
        0, ge=0, description="Number of the call of the loss that kills the process; 0 for never."
    )
    pause_s: float = Field(0.0, ge=0, description="Pause in every call of the loss [s].")
    only_first_time: str = Field(
        "",
        description="File whose creation marks the kill, so that it happens once; empty: always.",
    )


class SineWorkload(Workload):
    settings_type = SineSettings
    settings: SineSettings

    raw_schema = Schema(columns=(Column(name="value"), Column(name="slope")))
    feature_schema = Schema(
        columns=(Column(name="value"), Column(name="slope"), Column(name="target"))
    )
    feature_columns = ("value", "slope")
    target_column = "target"
    calls = 0

    def load_rows(self) -> pd.DataFrame:
        rng = np.random.default_rng(5)
        step = np.arange(self.settings.num_rows)
        value = 100 + 3 * np.sin(step / 7) + self.settings.noise * rng.normal(size=step.size)
        return pd.DataFrame({"value": value, "slope": np.gradient(value)})

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        frame = raw.assign(slope=raw["value"].diff(), target=raw["value"].shift(-1))
        return frame.iloc[1:-1]

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        time.sleep(self.settings.pause_s)
        if self.settings.raise_in_loss:
            raise ZeroDivisionError("the user's bug")
        if self.calls == self.settings.kill_at_loss:
            self._die()
        return super().loss(output, y)

    def metrics(
        self, output: Tensor, examples: Examples, frame: pd.DataFrame
    ) -> Mapping[str, float]:
        loss = super().metrics(output, examples, frame)["loss"]
        return {"loss": loss, "rmse": loss**0.5}

    def _die(self) -> None:
        marker_path = self.settings.only_first_time
        if marker_path:
            try:
                open(marker_path, "x").close()
            except FileExistsError:  # a process was killed before, or another rank was just killed
                return
        os.kill(os.getpid(), signal.SIGKILL)
