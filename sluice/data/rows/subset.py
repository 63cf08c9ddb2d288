"""Chosen rows of a row source, as a row source."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sluice.base.errors import ContractError
from sluice.data.rows.positions import check_positions
from sluice.data.rows.protocol import ModelInput, RowSource, gather


class SubsetRows:
    """Chosen rows of another source, such as the rows of one fold.

    Args:
        source: A tensor (N, ...) or another row source.
        positions: Positions in ``source``, int64 (M,); may repeat.

    Raises:
        ContractError: A position is outside of ``source``.
    """

    def __init__(self, source: RowSource | Tensor, positions: NDArray[np.int64] | Tensor) -> None:
        self.source = source
        self._positions = torch.as_tensor(positions)
        check_positions(self._positions, len(source))

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, rows: Tensor, /) -> ModelInput:
        return gather(self.source, self._chosen(rows))

    def lengths_of(self, rows: Tensor) -> Tensor:
        """Return the lengths of the chosen rows, if the source states them; see ``TokenRows``.

        Raises:
            ContractError: The source states no lengths.
        """
        lengths_of = getattr(self.source, "lengths_of", None)
        if lengths_of is None:
            raise ContractError(
                f"{type(self.source).__name__} has no lengths.",
                fix="Use a source with lengths, such as TokenRows, or no bucketing by length.",
            )
        found: Tensor = lengths_of(self._chosen(rows))
        return found

    def _chosen(self, rows: Tensor) -> Tensor:
        return self._positions[torch.from_numpy(check_positions(rows, len(self)))]
