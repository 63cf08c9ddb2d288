"""A workload as a user would write it: a noisy wave, and what comes next."""

import numpy as np
import pandas as pd

from sluice.data.schema import Column, Schema
from sluice.workloads.workload import Workload, WorkloadSettings


class WaveSettings(WorkloadSettings):
    seq_len: int = 8
    num_rows: int = 900
    noise: float = 0.1


class Waves(Workload):
    settings_type = WaveSettings
    raw_schema = Schema(columns=(Column(name="height"),))
    feature_schema = Schema(columns=(Column(name="height"), Column(name="next_height")))
    feature_columns = ("height",)
    target_column = "next_height"

    def load_rows(self) -> pd.DataFrame:
        t = np.arange(self.settings.num_rows)
        noise = np.random.default_rng(0).normal(0, self.settings.noise, t.size)
        return pd.DataFrame({"height": np.sin(t / 5) + noise}, index=pd.Index(t, name="t"))

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        return raw.assign(next_height=raw["height"].shift(-1)).dropna()
