"""A small workload as a user would write it: the target is twice ``call``, plus noise."""

import numpy as np
import pandas as pd
from torch import Tensor

from sluice.data.folds import Fold, RowRange
from sluice.data.schema import Column, Schema
from sluice.workloads.examples import Examples
from sluice.workloads.workload import Workload, WorkloadSettings


class EchoSettings(WorkloadSettings):
    seq_len: int = 2
    num_rows: int = 900


class Echo(Workload):
    settings_type = EchoSettings
    raw_schema = Schema(columns=(Column(name="call"),))
    feature_schema = Schema(columns=(Column(name="call"), Column(name="echo")))
    feature_columns = ("call",)
    target_column = "echo"

    def load_rows(self) -> pd.DataFrame:
        call, noise = np.random.default_rng(0).normal(size=(2, self.settings.num_rows))
        response = np.concatenate([[0.0], 2 * call[:-1]]) + noise
        return pd.DataFrame({"call": call, "response": response})

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        return raw[["call"]].assign(echo=raw["response"].shift(-1)).dropna()

    def baseline(self, frame: pd.DataFrame, fold: Fold) -> Tensor:
        """Return the train mean. Without this override, the gate would use the best simple rule."""
        return super().baseline(frame, fold)


class MissingColumn(Echo):
    """Its source lacks a column."""

    def load_rows(self) -> pd.DataFrame:
        return super().load_rows().rename(columns={"call": "cal"})


class FutureFeature(Echo):
    """Its feature is the value of the next row."""

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        return super().compute_features(raw.assign(call=raw["call"].shift(-1).fillna(0.0)))


class ShiftedTarget(Echo):
    """Its targets are shifted by a constant."""

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        frame = super().compute_features(raw)
        return frame.assign(echo=frame["echo"] + 1)


class LateFeatures(Echo):
    """Its features are missing before row 100 of the first test window."""

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        frame = super().compute_features(raw)
        first_test = self.plan_folds(frame)[0].test.start
        return frame.iloc[first_test + 100 :]


class SignOnly(Echo):
    """Its feature is only the sign of ``call``."""

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        frame = super().compute_features(raw)
        return frame.assign(call=np.sign(frame["call"]))


class PartlyKnownNoise(Echo):
    """Its feature also contains the sign of the target's noise, and so is a better predictor."""

    def load_rows(self) -> pd.DataFrame:
        rows = super().load_rows()
        noise = rows["response"] - 2 * rows["call"].shift(1, fill_value=0.0)
        return rows.assign(noise_sign=np.sign(noise.shift(-1, fill_value=0.0)))

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        frame = super().compute_features(raw)
        return frame.assign(call=frame["call"] + 0.4 * raw["noise_sign"])


class MisspelledColumn(Echo):
    """Has a bug: a misspelled column name."""

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        return raw[["call"]].assign(echo=raw["cal"])


class DoubledInputs(Echo):
    """Doubles the inputs in ``examples``. Clients of the server do not double them."""

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        examples = super().examples(frame, rows)
        return Examples(x=2 * examples.x, y=examples.y, rows=examples.rows)


class ConstantLoss(Echo):
    """Its loss does not depend on the output."""

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return 0 * super().loss(output, y) + 1
