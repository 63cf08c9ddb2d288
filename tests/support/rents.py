"""Workloads that fit a state on train rows: the mean rent of each city."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from sluice.data.folds import FoldSettings, RowRange
from sluice.data.rows.protocol import DictRows, ModelInput
from sluice.data.schema import Column, Schema
from sluice.workloads.codecs import Codec, RawRowsCodec
from sluice.workloads.examples import Examples
from sluice.workloads.workload import Workload, WorkloadSettings

CITIES = ("Aachen", "Bern", "Chur", "Davos", "Essen", "Fulda")


class RentSettings(WorkloadSettings):
    folds: FoldSettings = FoldSettings(num_folds=2, embargo_rows=0)
    num_rows: int = 600


def hash_texts(texts: "pd.Series[str]") -> Any:
    return pd.util.hash_array(texts.to_numpy(object)).view(np.int64)


class Rents(Workload):
    """Rents of flats. The last city does not occur in train rows, only in later rows."""

    settings_type = RentSettings
    settings: RentSettings
    raw_schema = Schema(
        columns=(Column(name="city", kind="string"), Column(name="rooms"), Column(name="rent"))
    )
    feature_schema = raw_schema
    feature_columns = ("rooms",)
    target_column = "rent"
    horizon_rows = 0
    default_architecture = "mlp"

    def load_rows(self) -> pd.DataFrame:
        rng = np.random.default_rng(3)
        num_rows = self.settings.num_rows
        city = rng.integers(0, len(CITIES) - 1, num_rows)
        city[-num_rows // 20 :] = len(CITIES) - 1
        rooms = rng.integers(1, 6, num_rows)
        rent = 300.0 * city + 100.0 * rooms + rng.normal(0, 20, num_rows)
        return pd.DataFrame(
            {"city": np.array(CITIES)[city], "rooms": rooms.astype(float), "rent": rent}
        )

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        return raw

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        selected = frame.iloc[rows.start : rows.stop]
        rooms = torch.from_numpy(selected["rooms"].to_numpy(np.float32))
        return Examples(
            x=DictRows({"city": torch.from_numpy(hash_texts(selected["city"])), "rooms": rooms}),
            y=torch.from_numpy(selected["rent"].to_numpy(np.float32))[:, None],
            rows=np.arange(rows.start, rows.stop),
        )

    def fit(self, train_frame: pd.DataFrame) -> Mapping[str, Any]:
        mean = train_frame.groupby(hash_texts(train_frame["city"]))["rent"].mean()
        return {"rents": mean.to_numpy(), "cities": mean.index.to_numpy()}

    def encode(self, x: ModelInput, state: Mapping[str, Tensor]) -> ModelInput:
        assert isinstance(x, dict)
        cities, rents = state["cities"], state["rents"]
        index = torch.searchsorted(cities, x["city"]).clamp(max=len(cities) - 1)
        rent = torch.where(cities[index] == x["city"], rents[index], rents.mean())
        return torch.stack([rent, x["rooms"]], dim=1)[:, None]

    def codec(self) -> Codec:
        return RawRowsCodec(self, context_rows=1, unknown={"rent": 0.0})


class RentsOfAllRows(Rents):
    """Fits the state on all rows, including the test rows."""

    def fit(self, train_frame: pd.DataFrame) -> Mapping[str, Any]:
        return super().fit(self.load_rows())


class RentsOfStoredRows(Rents):
    """Fits the state on the first table that ``compute_features`` received."""

    stored: pd.DataFrame | None = None

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        if self.stored is None:
            self.stored = raw
        return raw

    def fit(self, train_frame: pd.DataFrame) -> Mapping[str, Any]:
        return super().fit(train_frame if self.stored is None else self.stored)


class RentsWithNoise(Rents):
    """Adds noise from a generator without a seed to the state."""

    def fit(self, train_frame: pd.DataFrame) -> Mapping[str, Any]:
        state = super().fit(train_frame)
        noise = np.random.default_rng().normal(size=len(state["rents"]))
        return {**state, "rents": state["rents"] + noise}
