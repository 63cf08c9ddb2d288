"""Variants of the echo workload whose source gets more rows, changes, or fails."""

import threading
import time
from typing import ClassVar

import numpy as np
import pandas as pd

from sluice.base.errors import SourceError
from sluice.data.schema import Column, Schema
from tests.support.echo import Echo, EchoSettings


class GrowingSettings(EchoSettings):
    more_rows: int = 0
    shift: float = 0.0
    """Shift of the mean of ``call`` in the additional rows."""

    effect_loss: float = 0.0
    """Share by which the effect of ``call`` on the next row is reduced in the additional rows."""


class Growing(Echo):
    """Its source has ``more_rows`` additional rows, whose distribution may differ."""

    settings_type = GrowingSettings
    settings: GrowingSettings

    def load_rows(self) -> pd.DataFrame:
        rows = super().load_rows()
        settings = self.settings
        call, noise = np.random.default_rng(1).normal(size=(2, settings.more_rows))
        call = call + settings.shift
        previous_call = np.concatenate([rows["call"].to_numpy()[-1:], call[:-1]])
        response = 2 * (1 - settings.effect_loss) * previous_call[: len(call)] + noise
        return pd.concat(
            [rows, pd.DataFrame({"call": call, "response": response})], ignore_index=True
        )


class MissingSource(Echo):
    """Its source does not exist."""

    def load_rows(self) -> pd.DataFrame:
        raise SourceError("The table 'calls' is not there.", fix="Restore the table.")


class Slow(Echo):
    """Its source takes longer than the time limit of the tests."""

    def load_rows(self) -> pd.DataFrame:
        time.sleep(2)
        return super().load_rows()


class IncompleteSource(Echo):
    """Its source returns None until ``is_complete`` is set, like a file that is being written."""

    is_complete: ClassVar[bool] = False

    def load_rows(self) -> pd.DataFrame:
        rows = super().load_rows()
        return rows if self.is_complete else None  # type: ignore[return-value]


class Empty(Echo):
    """Its source has no rows."""

    def load_rows(self) -> pd.DataFrame:
        return super().load_rows().iloc[:0]


class Hanging(Echo):
    """The first ``num_hanging`` calls of ``load_rows`` wait until ``released`` is set."""

    num_hanging: ClassVar[int] = 0
    num_started_loads: ClassVar[int] = 0
    released: ClassVar[threading.Event] = threading.Event()

    def load_rows(self) -> pd.DataFrame:
        cls = type(self)
        cls.num_started_loads += 1
        if cls.num_started_loads <= cls.num_hanging:
            cls.released.wait()
        return super().load_rows()


class TwoInputs(Echo):
    """It has a second input column."""

    feature_schema = Schema(
        columns=(Column(name="call"), Column(name="square"), Column(name="echo"))
    )
    feature_columns = ("call", "square")

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        frame = super().compute_features(raw)
        return frame.assign(square=frame["call"] ** 2)[["call", "square", "echo"]]
