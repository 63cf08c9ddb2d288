"""The held-out rows as requests: each bar in its turn, asked about by several users.

Shape legend: N = windows, L = rows of a window, D = features, O = outputs.
"""

import json
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sluice.base.errors import ContractError
from sluice.config.pipeline import PipelineSettings
from sluice.evaluation.production import row_labels
from sluice.registry.records import Version

_USERS = 5000
_FEWEST = 50


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replay:
    """Rows that no network in production was fitted on, in their order."""

    frame: pd.DataFrame
    """Features and targets of all rows."""

    rows_N: NDArray[np.int64]
    """Positions in the frame of the windows' newest rows."""

    x_NLD: NDArray[np.float32]
    columns: tuple[str, ...]
    horizon_rows: int
    keys: tuple[str, ...]

    def body(self, place: int, *, rng: Random) -> bytes:
        """Return a request about one window, from a user drawn by chance.

        Args:
            place: Of the window, from 0.
            rng: Draws the user.
        """
        asked: dict[str, Any] = {
            "user": f"user {rng.randrange(_USERS)}",
            "columns": self.columns,
            "windows": [self.x_NLD[place].tolist()],
            "keys": [self.keys[place]],
        }
        return json.dumps(asked).encode()

    def labelled(self, place: int) -> pd.DataFrame:
        """Return the rows whose labels have arrived once the bar at ``place`` is there."""
        return self.frame.iloc[: max(0, int(self.rows_N[place]) + 1 - self.horizon_rows)]


def open_replay(version: Version, pipeline: PipelineSettings) -> Replay:
    """Return the test rows of the last fold, computed as the version's workload does it.

    The rows are read from the pipeline's source. The version's settings name one too, which may
    have come in a file: whoever wrote it would choose an address that is asked here, with the
    environment variables that he names in it.

    Raises:
        SourceError: The rows cannot be read.
        ContractError: There are too few, or the version's workload is not importable.
    """
    from sluice.findings.user_code import users_code
    from sluice.registry.loading import rebuild

    workload, _ = rebuild(version)
    with users_code("load_rows, compute_features, plan_folds or examples of the workload"):
        frame = workload.compute_features(pipeline.loaded_workload.load_rows())
        fold = workload.plan_folds(frame)[-1]
        examples = workload.examples(frame, fold.test)
    if len(examples) < _FEWEST:
        raise ContractError(
            f"A rehearsal needs at least {_FEWEST} held-out rows to replay, got {len(examples)}.",
            fix="Give the pipeline more rows, or fewer folds.",
        )
    return Replay(
        frame=frame,
        rows_N=examples.rows,
        x_NLD=examples.x.numpy().astype(np.float32),
        columns=workload.feature_columns,
        horizon_rows=workload.horizon_rows,
        keys=tuple(row_labels(frame.index[examples.rows]).tolist()),
    )
