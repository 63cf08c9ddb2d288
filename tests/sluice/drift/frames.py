"""Sample tables without drift, and their references."""

import numpy as np
import pandas as pd

from sluice.config.drift_settings import DriftSettings
from sluice.drift.reference import DriftReference, build_reference

SMALL = DriftSettings(min_resamples=299, num_features=16)


def make_frame(seed: int, num_rows: int) -> pd.DataFrame:
    """Return three numeric columns (one with missing values), a categorical and a boolean one.

    Frames with different seeds have the same distribution.
    """
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(num_rows, 3)), columns=["a", "b", "holes"])
    frame.loc[rng.random(num_rows) < 0.1, "holes"] = np.nan
    frame["city"] = rng.choice(["Bonn", "Lyon", "Rome"], size=num_rows, p=[0.6, 0.3, 0.1])
    frame["flag"] = rng.random(num_rows) < 0.2
    return frame


def make_reference(frame: pd.DataFrame, settings: DriftSettings = SMALL) -> DriftReference:
    return build_reference(frame, settings, seed=0, threads=1)
