"""Records of packed shards, as the input of a network."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sluice.base.errors import ContractError
from sluice.base.settings import suggest_nearest
from sluice.data.rows.positions import check_positions
from sluice.data.rows.protocol import ModelInput
from sluice.data.rows.shards import ShardReader

Collate = Callable[[list[dict[str, Any]]], ModelInput]
"""Turns the records of a batch into the input of a network."""


class ShardRows:
    """Records of a folder that ``sluice pack`` wrote.

    Args:
        folder: Folder of the shards.
        columns: Columns to read; None for all.
        collate: Turns the records of a batch, dicts by column, into a tensor (B, ...) or a dict of
            such tensors. It must be importable, because loader processes need it. By default the
            columns must be numbers and become float32 (B, columns).

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
        known = self._shards.columns
        self.columns = tuple(known) if columns is None else tuple(columns)
        for name in self.columns:
            if name not in known:
                raise ContractError(
                    f"The shards in {folder} have no column '{name}'."
                    f"{suggest_nearest(name, list(known))}",
                    fix=f"Name columns of the shards: {', '.join(known)}.",
                )
            if collate is None and not known[name].startswith(("int", "uint", "float", "double")):
                raise ContractError(
                    f"The column '{name}' of {folder} must be numeric, got {known[name]}.",
                    cause="Texts, bytes and lists become tensors in a way that only you know.",
                    fix="Pass collate=function, or name numeric columns. For images use "
                    "ImageShardRows.",
                )

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, rows: Tensor, /) -> ModelInput:
        records = self._shards.records(check_positions(rows, len(self)), self.columns)
        if self._collate is not None:
            return self._collate(records)
        values = np.array([list(record.values()) for record in records], np.float32)
        values = values.reshape(len(records), len(self.columns))  # also if there are no records
        if not np.isfinite(values).all():
            at, column = np.argwhere(~np.isfinite(values))[0]
            raise ContractError(
                f"The column '{self.columns[column]}' must have finite numbers, got "
                f"{records[at][self.columns[column]]} in record {int(rows[at])}.",
                cause="The value is missing in the source that was packed.",
                fix="Fill or drop the record before packing, or pass collate=function.",
            )
        return torch.from_numpy(values)
