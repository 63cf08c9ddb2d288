"""Chosen rows of a row source, as a row source."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sluice.data.rows.positions import check_positions
from sluice.data.rows.protocol import LengthsOf, ModelInput, RowSource, find_lengths, gather


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
        # The array is copied, because torch warns about read-only arrays, as pandas returns them.
        self._positions = (
            torch.from_numpy(positions.copy()) if isinstance(positions, np.ndarray) else positions
        )
        check_positions(self._positions, len(source))

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, rows: Tensor, /) -> ModelInput:
        return gather(self.source, self._source_rows(rows))

    @property
    def lengths_of(self) -> LengthsOf | None:
        """Function that maps rows to their lengths; None if the source has no lengths."""
        lengths_of = find_lengths(self.source)
        return None if lengths_of is None else lambda rows: lengths_of(self._source_rows(rows))

    def _source_rows(self, rows: Tensor) -> Tensor:
        return self._positions[torch.from_numpy(check_positions(rows, len(self)))]
