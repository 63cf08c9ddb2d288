"""Which rows and columns of a large table the look-ahead check computes and compares."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from sluice.base.errors import ContractError
from sluice.config.poc_settings import LookAheadSettings
from sluice.failfast.data.row_order import row_order
from sluice.findings.user_code import users_code

_MIN_ROWS = 1000
"""Rows of a sample at least, however wide the table is."""

_NUM_BLOCKS = 3
"""Blocks of consecutive rows in a sample: the oldest, the newest, and one between them."""

_MIN_KEPT = 0.5
"""Share of the usual number of feature rows that a block must give, or more rows are taken."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """Rows that follow each other in time, and the features computed from these rows alone."""

    raw: pd.DataFrame
    features: pd.DataFrame


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LookAheadSample:
    """The rows from which features are computed again, and the columns that are compared."""

    blocks: tuple[Block, ...]
    """The whole table as one block, or the blocks of a sample, oldest first."""
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
    *,
    seed: int,
) -> LookAheadSample:
    """Return the whole table, or of a large one three blocks of consecutive rows.

    The blocks are the oldest rows, the newest rows and rows at a random place between. Features of
    a block are compared with features of the same block after a change, so a feature that reaches
    back beyond the block's first row is no look-ahead. Where a block gives few rows of features,
    as with windows longer than it, every block becomes four times as long.

    Args:
        compute: From raw rows to features.
        raw: Raw rows.
        whole: What ``compute(raw)`` returned.
        columns: Feature columns.
        settings: ``max_cells`` and ``max_columns``.
        seed: Draws the place of the block between the oldest and the newest.

    Cost:
        One computation of all features of the blocks.
    """
    width = max(raw.shape[1], whole.shape[1], 1)
    max_rows = max(settings.max_cells // width, _MIN_ROWS)
    blocks: tuple[Block, ...] = ()
    num_rows = max_rows // _NUM_BLOCKS
    while not blocks and max_rows < len(raw) and num_rows * _NUM_BLOCKS < len(raw):
        blocks = _blocks(compute, raw, whole, num_rows, np.random.default_rng(seed))
        num_rows *= 4
    left_out = []
    if blocks:
        num_rows = len(blocks[0].raw)
        left_out.append(
            f"features were computed from {len(blocks)} blocks of {num_rows} consecutive rows of "
            f"{len(raw)}, the oldest, the newest and one between (poc.look_ahead.max_cells), so a "
            "look-ahead in other rows alone, or over more rows than a block has, is not seen"
        )
    if len(columns) > settings.max_columns:
        left_out.append(
            f"each table compared another {settings.max_columns} of {len(columns)} features "
            "(poc.look_ahead.max_columns)"
        )
    return LookAheadSample(
        blocks=blocks or (Block(raw=raw, features=whole),),
        columns=columns,
        max_columns=settings.max_columns,
        note=f" A sample was examined: {'; '.join(left_out)}." if left_out else "",
    )


def _blocks(
    compute: Callable[[pd.DataFrame], pd.DataFrame],
    raw: pd.DataFrame,
    whole: pd.DataFrame,
    num_rows: int,
    rng: np.random.Generator,
) -> tuple[Block, ...]:
    """Return the blocks of this length, or none when one gives few rows of features."""
    order = row_order(raw.index)
    last = len(raw) - num_rows
    between = int(rng.integers(num_rows, last - num_rows, endpoint=True))
    blocks = []
    for start in (0, between, last):
        part = raw.iloc[np.sort(order[start : start + num_rows])]
        try:
            with users_code("compute_features() of the workload"):
                features = compute(part.copy(deep=False))
        except ContractError:  # too few rows for it
            return ()
        usual = whole.index.isin(part.index).sum()
        if len(features) < _MIN_KEPT * usual or len(features) == 0:
            return ()
        blocks.append(Block(raw=part, features=features))
    return tuple(blocks)
