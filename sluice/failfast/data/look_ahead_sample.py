"""Which rows and columns of a large table the look-ahead check computes and compares."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from sluice.errors import ContractError
from sluice.failfast.data.row_order import row_order
from sluice.failfast.settings import LookAheadSettings
from sluice.failfast.user_code import users_code

_MIN_ROWS = 1000
"""Rows of a sample at least, however wide the table is."""

_MIN_KEPT = 0.5
"""Share of the usual number of features rows that a sample must give, or more rows are taken."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LookAheadSample:
    """The rows from which features are computed again, and the columns that are compared."""

    raw: pd.DataFrame
    whole: pd.DataFrame
    """Features of ``raw``."""
    columns: tuple[str, ...]
    max_columns: int
    note: str
    """What was left out, as the end of a summary; empty when nothing was."""

    def columns_of(self, table: int, rng: np.random.Generator) -> tuple[str, ...]:
        """Return the columns to compare in a table, others in each, in the table's order.

        Args:
            table: Number of the changed table, from 0.
            rng: Draws the order in which columns take turns; equal for all tables.
        """
        if len(self.columns) <= self.max_columns:
            return self.columns
        turn = np.roll(rng.permutation(len(self.columns)), -table * self.max_columns)
        return tuple(self.columns[place] for place in np.sort(turn[: self.max_columns]))


def draw_sample(
    compute: Callable[[pd.DataFrame], pd.DataFrame],
    raw: pd.DataFrame,
    whole: pd.DataFrame,
    columns: tuple[str, ...],
    settings: LookAheadSettings,
) -> LookAheadSample:
    """Return the whole table, or of a large one its last rows in time, computed once more.

    Features of the sample are compared with features of the changed sample only, so a feature
    that reaches back beyond its first row is no look-ahead. Where the sample gives few rows of
    features, as with windows longer than it, more rows are taken.

    Args:
        compute: From raw rows to features.
        raw: Raw rows.
        whole: What ``compute(raw)`` returned.
        columns: Feature columns.
        settings: ``max_cells`` and ``max_columns``.
    """
    width = max(raw.shape[1], whole.shape[1], 1)
    num_rows = max(settings.max_cells // width, _MIN_ROWS)
    part, features = raw, whole
    while num_rows < len(raw):
        part = raw.iloc[np.sort(row_order(raw.index)[-num_rows:])]
        try:
            with users_code("compute_features() of the workload"):
                features = compute(part.copy(deep=False))
        except ContractError:  # too few rows for it
            features = whole.iloc[:0]
        if len(features) >= _MIN_KEPT * num_rows * len(whole) / len(raw):
            break
        num_rows *= 4
        part, features = raw, whole
    left_out = []
    if len(part) < len(raw):
        left_out.append(
            f"features were computed from the last {len(part)} of {len(raw)} rows "
            "(poc.look_ahead.max_cells), so a look-ahead in earlier rows alone, or over more rows "
            "than these, is not seen"
        )
    if len(columns) > settings.max_columns:
        left_out.append(
            f"each table compared another {settings.max_columns} of {len(columns)} features "
            "(poc.look_ahead.max_columns)"
        )
    return LookAheadSample(
        raw=part,
        whole=features,
        columns=columns,
        max_columns=settings.max_columns,
        note=f" A sample was examined: {'; '.join(left_out)}." if left_out else "",
    )
