"""Held-out rows that a rehearsal requests: one row at a time, each by several users.

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

RequestFields = dict[str, Any]
"""Fields of the body of a request, by name."""

_NUM_USERS = 5000
"""Number of different users that send the requests."""

_MIN_ROWS = 50
"""Minimum number of held-out rows for a rehearsal."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestRows:
    """Rows that no network in production was trained on, in order."""

    frame: pd.DataFrame
    """Features and targets of all rows."""

    rows_N: NDArray[np.int64]
    """Positions in the frame of the rows to predict from."""

    x: Tensor | RowSource
    """Inputs of the rows."""

    fields_of: Callable[[int], RequestFields]
    """Returns the fields of a request for a row of the frame, without user and key."""

    horizon_rows: int
    """Number of following rows on which a row's target depends. The row's label arrives with the
    last of these rows."""

    keys: tuple[str, ...]
    """Index label of each row, which requests send as the key of the row."""

    _cached_fields: dict[int, RequestFields] = field(default_factory=dict)
    """Fields by index of the row, because a row is requested several times."""

    def body(self, index: int, *, rng: Random) -> bytes:
        """Return the body of a request for one row, from a randomly drawn user.

        Args:
            index: Index of the row, from 0.
            rng: Draws the user.
        """
        fields = self._cached_fields.get(index)
        if fields is None:
            fields = self._cached_fields[index] = self.fields_of(int(self.rows_N[index]))
        payload: RequestFields = {
            "user": f"user {rng.randrange(_NUM_USERS)}",
            **fields,
            "keys": [self.keys[index]],
        }
        return json.dumps(payload).encode()

    def labelled_frame(self, index: int) -> pd.DataFrame:
        """Return the rows whose labels have arrived when the row at ``index`` is requested."""
        return self.frame.iloc[: max(0, int(self.rows_N[index]) + 1 - self.horizon_rows)]


def load_request_rows(version: Version, current_workload: Workload) -> RequestRows:
    """Return the test rows of the last fold, with features from the version's workload.

    The rows come from the source of ``current_workload``. The version's own source is not used: the
    source of an imported version may be any URL, in which ``${NAME}`` is replaced by an environment
    variable. Reading it could send secrets of this machine to the author of the version.

    Args:
        version: The version.
        current_workload: The pipeline's workload, from whose source the rows are read.

    Raises:
        SourceError: The rows cannot be read.
        ContractError: There are too few rows, the version's workload is not importable, or a
            request for a row is not decoded to the input of this row.
    """
    from sluice.findings.user_code import wrap_user_errors
    from sluice.registry.loading import rebuild_workload

    workload, _ = rebuild_workload(version)
    with wrap_user_errors("load_rows, compute_features, plan_folds or examples of the workload"):
        raw_rows = current_workload.load_rows()
        frame = workload.compute_features(raw_rows)
        fold = workload.plan_folds(frame)[-1]
        examples = workload.examples(frame, fold.test)
        codec = workload.codec()
        if not isinstance(codec, WindowsCodec):
            check_round_trip(workload, codec, raw_rows, frame, fold.test)
    if len(examples) < _MIN_ROWS:
        raise ContractError(
            f"A rehearsal needs at least {_MIN_ROWS} held-out rows, got {len(examples)}.",
            fix="Give the pipeline more rows, or fewer folds.",
        )
    return RequestRows(
        frame=frame,
        rows_N=examples.rows,
        x=examples.x,
        fields_of=lambda row: workload.request_of(raw_rows, frame, np.array([row], np.int64)),
        horizon_rows=workload.horizon_rows,
        keys=tuple(row_labels(frame.index[examples.rows]).tolist()),
    )
