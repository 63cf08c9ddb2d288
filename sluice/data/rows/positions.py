"""Checks the positions that a row source receives."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sluice.base.errors import ContractError


def check_positions(rows: Tensor, num_rows: int) -> NDArray[np.int64]:
    """Return positions as an array after checking their type and range.

    A negative position would silently read from the end, and a boolean mask would read rows 0
    and 1.

    Args:
        rows: Positions, int64 (B,), on any device.
        num_rows: Length of the source.

    Raises:
        ContractError: The positions are not int64 (B,), or a position is outside of the source.
    """
    if not isinstance(rows, Tensor) or rows.dtype != torch.int64 or rows.ndim != 1:
        received = (
            f"{str(rows.dtype).removeprefix('torch.')} {tuple(rows.shape)}"
            if isinstance(rows, Tensor)
            else type(rows).__name__
        )
        raise ContractError(
            "A row source needs the positions of examples as an int64 tensor (B,), got "
            f"{received}.",
            fix="Pass torch.tensor([...]), for a single row a tensor with one entry.",
        )
    positions: NDArray[np.int64] = rows.cpu().numpy()
    if positions.size and not 0 <= positions.min() <= positions.max() < num_rows:
        invalid_positions = positions[(positions < 0) | (positions >= num_rows)]
        raise ContractError(
            f"Positions must be from 0 to {num_rows - 1}, got {invalid_positions[0]}.",
            cause="The positions belong to a source with another number of rows.",
            fix="Use the source for which the positions were computed, or create the source with "
            "one entry for each row of the table that the positions refer to.",
        )
    return positions
