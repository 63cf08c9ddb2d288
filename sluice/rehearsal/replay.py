"""Replays the held-out rows as requests: one row at a time, each requested by several users.

Shape legend: N = rows.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from sluice.base.errors import ContractError
from sluice.data.rows.protocol import RowSource
from sluice.evaluation.unseen_members import row_labels
from sluice.registry.records import Version
from sluice.workloads.codecs.round_trip import check_round_trip
from sluice.workloads.codecs.windows import WindowsCodec
from sluice.workloads.workload import Workload

ElementsOf = Callable[[int], dict[str, Any]]

_NUM_USERS = 5000
_MIN_ROWS = 50


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replay:
    """Rows that no network in production was trained on, in order."""

    frame: pd.DataFrame
    """Features and targets of all rows."""

    rows_N: NDArray[np.int64]
    """Positions in the frame of the rows to predict from."""

    x: Tensor | RowSource
    """Inputs of the rows."""

    elements_of: ElementsOf
    """Returns the fields of a request for a row of the frame, without user and key."""

    horizon_rows: int
    keys: tuple[str, ...]
    _elements: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Fields by index of the row; a row is requested several times."""

    def body(self, position: int, *, rng: Random) -> bytes:
        """Return the body of a request for one row, from a randomly drawn user.

        Args:
            position: Index of the row, from 0.
            rng: Draws the user.
        """
        elements = self._elements.get(position)
        if elements is None:
            elements = self._elements[position] = self.elements_of(int(self.rows_N[position]))
        payload: dict[str, Any] = {
            "user": f"user {rng.randrange(_NUM_USERS)}",
            **elements,
            "keys": [self.keys[position]],
        }
        return json.dumps(payload).encode()

    def labelled(self, position: int) -> pd.DataFrame:
        """Return the rows whose labels have arrived when the row at ``position`` is replayed."""
        return self.frame.iloc[: max(0, int(self.rows_N[position]) + 1 - self.horizon_rows)]


def open_replay(version: Version, current: Workload) -> Replay:
    """Return the test rows of the last fold, with features from the version's workload.

    The rows are read from the source of ``current``, not from that in the version's settings: these
    may come from an imported file, whose author could choose an address that this machine then
    requests, with the values of environment variables.

    Args:
        version: The version.
        current: The pipeline's workload, from whose source the rows are read.

    Raises:
        SourceError: The rows cannot be read.
        ContractError: There are too few rows, the version's workload is not importable, or a
            request for a row is not decoded to the input of this row.
    """
    from sluice.findings.user_code import wrap_user_errors
    from sluice.registry.loading import rebuild_workload

    workload, _ = rebuild_workload(version)
    with wrap_user_errors("load_rows, compute_features, plan_folds or examples of the workload"):
        raw = current.load_rows()
        frame = workload.compute_features(raw)
        fold = workload.plan_folds(frame)[-1]
        examples = workload.examples(frame, fold.test)
        codec = workload.codec()
        if not isinstance(codec, WindowsCodec):
            check_round_trip(workload, codec, raw, frame, fold.test)
    if len(examples) < _MIN_ROWS:
        raise ContractError(
            f"A rehearsal needs at least {_MIN_ROWS} held-out rows to replay, got {len(examples)}.",
            fix="Give the pipeline more rows, or fewer folds.",
        )
    return Replay(
        frame=frame,
        rows_N=examples.rows,
        x=examples.x,
        elements_of=lambda row: workload.request_of(raw, frame, np.array([row], np.int64)),
        horizon_rows=workload.horizon_rows,
        keys=tuple(row_labels(frame.index[examples.rows]).tolist()),
    )
