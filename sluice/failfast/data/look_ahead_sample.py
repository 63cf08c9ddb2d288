"""Selects the rows and columns of a large table that the look-ahead check uses."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from sluice.base.errors import ContractError
from sluice.config.poc_settings import LookAheadSettings
from sluice.failfast.data.row_order import time_order
from sluice.findings.user_code import wrap_user_errors

_MIN_ROWS = 1000
"""Lower bound of the maximum number of rows of a sample, for tables with very many columns."""

_NUM_BLOCKS = 3
"""Number of blocks of consecutive rows in a sample: oldest rows, newest rows, rows in between."""

_MIN_FEATURE_ROW_RATIO = 0.5
"""Minimum number of feature rows computed from a block alone, relative to the number of feature
rows that the whole table has for the same raw rows. If a block yields fewer feature rows, all
blocks become longer."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowBlock:
    """Rows that are consecutive in time, and the features computed from these rows alone."""

    raw: pd.DataFrame
    features: pd.DataFrame


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LookAheadSample:
    """Rows from which features are recomputed, and the columns to compare."""

    blocks: tuple[RowBlock, ...]
    """The whole table as one block, or the blocks of a sample, oldest first."""
    columns: tuple[str, ...]
    max_columns: int
    note: str
    """Description of the omitted rows and columns for a summary; empty for a whole table."""

    def columns_of(self, table_index: int, rng: np.random.Generator) -> tuple[str, ...]:
        """Return the columns to compare in one changed table; the tables use columns in turn.

        In a changed table, the later rows of a block are reordered, and some are dropped.

        Args:
            table_index: Number of the changed table, from 0.
            rng: Draws the order of the columns; must be in the same state for all tables.
        """
        if len(self.columns) <= self.max_columns:
            return self.columns
        order = np.roll(rng.permutation(len(self.columns)), -table_index * self.max_columns)
        return tuple(self.columns[column] for column in np.sort(order[: self.max_columns]))


def draw_sample(
    compute: Callable[[pd.DataFrame], pd.DataFrame],
    raw: pd.DataFrame,
    features: pd.DataFrame,
    columns: tuple[str, ...],
    settings: LookAheadSettings,
    *,
    seed: int,
) -> LookAheadSample:
    """Return the whole table, or three blocks of consecutive rows of a large table.

    The blocks are the oldest rows, the newest rows and rows at a random position in between.
    The check changes the later rows of a block, and compares the features computed from the block
    before and after the change. So a feature that needs rows before the block is not mistaken for
    look-ahead. If a block yields few feature rows, for example because windows are longer than the
    block, all blocks become four times as long.

    Args:
        compute: Function from raw rows to features.
        raw: Raw rows.
        features: Result of ``compute(raw)``.
        columns: Feature columns.
        settings: ``max_cells`` and ``max_columns``.
        seed: Seed of the position of the middle block.

    Cost:
        One computation of all features of the blocks.
    """
    width = max(raw.shape[1], features.shape[1], 1)
    max_rows = max(settings.max_cells // width, _MIN_ROWS)
    blocks: tuple[RowBlock, ...] = ()
    num_rows = max_rows // _NUM_BLOCKS
    while not blocks and max_rows < len(raw) and num_rows * _NUM_BLOCKS < len(raw):
        blocks = _compute_blocks(compute, raw, features, num_rows, np.random.default_rng(seed))
        num_rows *= 4
    omissions = []
    if blocks:
        num_rows = len(blocks[0].raw)
        omissions.append(
            f"features were computed from {len(blocks):,} blocks of {num_rows:,} consecutive rows "
            f"of {len(raw):,}, the oldest, the newest and one in between "
            "(poc.look_ahead.max_cells), so a look-ahead only in other rows, or over more rows "
            "than a block has, is not detected"
        )
    if len(columns) > settings.max_columns:
        omissions.append(
            f"each changed table was compared in {settings.max_columns} of {len(columns):,} "
            "features, in turn (poc.look_ahead.max_columns)"
        )
    return LookAheadSample(
        blocks=blocks or (RowBlock(raw=raw, features=features),),
        columns=columns,
        max_columns=settings.max_columns,
        note=f" A sample was examined: {'; '.join(omissions)}." if omissions else "",
    )


def _compute_blocks(
    compute: Callable[[pd.DataFrame], pd.DataFrame],
    raw: pd.DataFrame,
    features: pd.DataFrame,
    num_rows: int,
    rng: np.random.Generator,
) -> tuple[RowBlock, ...]:
    """Return blocks of ``num_rows`` rows, or () if a block yields too few feature rows."""
    order = time_order(raw.index)
    last_start = len(raw) - num_rows
    middle_start = int(rng.integers(num_rows, last_start - num_rows, endpoint=True))
    blocks = []
    for start in (0, middle_start, last_start):
        block_rows = raw.iloc[np.sort(order[start : start + num_rows])]
        try:
            with wrap_user_errors("compute_features() of the workload"):
                block_features = compute(block_rows.copy(deep=False))
        except ContractError:  # too few rows for compute_features
            return ()
        num_rows_from_table = features.index.isin(block_rows.index).sum()
        if (
            len(block_features) < _MIN_FEATURE_ROW_RATIO * num_rows_from_table
            or len(block_features) == 0
        ):
            return ()
        blocks.append(RowBlock(raw=block_rows, features=block_features))
    return tuple(blocks)
