"""Records of packed shards, as the input of a network."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sluice.base.errors import ContractError
from sluice.base.settings import suggest_nearest
from sluice.data.rows.positions import check_positions
from sluice.data.rows.protocol import ModelInput
from sluice.data.rows.shards import ShardReader

if TYPE_CHECKING:
    import pandas as pd

_NUMERIC_TYPE_PREFIXES = ("int", "uint", "halffloat", "float", "double", "bool")
"""Beginnings of the names of numeric Arrow types."""

Collate = Callable[[list[dict[str, Any]]], ModelInput]
"""Turns the records of a batch into the input of a network."""


def shard_table(folder: Path | str, columns: Sequence[str] | None = None) -> "pd.DataFrame":
    """Return columns of packed shards as a table in memory, such as labels and keys of the records.

    Args:
        folder: Folder written by ``sluice pack``.
        columns: Columns to read; None for all. Leave out large columns.

    Raises:
        SourceError: The folder has no complete shards.
        ContractError: A column is missing.
    """
    import pyarrow as pa

    shards = ShardReader(folder)
    names = _require_columns(columns, shards)
    frame: pd.DataFrame = pa.Table.from_batches(list(shards.batches(names))).to_pandas()
    return frame


class ShardRows:
    """Records of a folder that ``sluice pack`` wrote.

    Args:
        folder: Folder of the shards.
        columns: Columns to read; None for all.
        collate: Turns the records of a batch, dicts by column, into a tensor (B, ...) or a dict of
            such tensors. The function must be importable, because loader processes need it. By
            default the columns must be numbers and become float32 (B, columns).

    Raises:
        SourceError: The folder has no complete shards.
        ContractError: A column is missing, or is not numeric and there is no ``collate``.
    """

    def __init__(
        self,
        folder: Path | str,
        columns: Sequence[str] | None = None,
        *,
        collate: Collate | None = None,
    ) -> None:
        self._shards, self._collate = ShardReader(folder), collate
        self.columns = _require_columns(columns, self._shards)
        for name in self.columns:
            kind = self._shards.columns[name]
            if collate is None and not kind.startswith(_NUMERIC_TYPE_PREFIXES):
                raise ContractError(
                    f"The column '{name}' of {folder} must be numeric, got {kind}.",
                    cause="Texts, bytes and lists become tensors in a way that only you know.",
                    fix="Pass collate=function, or name numeric columns. For images use "
                    "ImageShardRows.",
                )

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, rows: Tensor, /) -> ModelInput:
        positions = check_positions(rows, len(self))
        if self._collate is not None:
            return self._collate(self._shards.records(positions, self.columns))
        values = self._shards.numbers(positions, self.columns)
        if not np.isfinite(values).all():
            row, column = np.argwhere(~np.isfinite(values))[0]
            raise ContractError(
                f"The column '{self.columns[column]}' must have finite numbers, got "
                f"{values[row, column]} in record {positions[row]}.",
                cause="The packed source has no value, infinity, or a number above 3.4e38 there.",
                fix="Fill or drop the record before packing, or pass collate=function.",
            )
        return torch.from_numpy(values)


def _require_columns(columns: Sequence[str] | None, shards: ShardReader) -> tuple[str, ...]:
    known_columns = shards.columns
    for name in columns or ():
        if name not in known_columns:
            raise ContractError(
                f"The shards in {shards.folder} have no column '{name}'."
                f"{suggest_nearest(name, list(known_columns))}",
                fix=f"Name columns of the shards: {', '.join(known_columns)}.",
            )
    return tuple(known_columns) if columns is None else tuple(columns)
