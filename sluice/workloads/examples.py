"""Examples: pairs of inputs and targets, and the rows that they belong to."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sluice.data.rows.protocol import (
    DictRows,
    ModelInput,
    RowSource,
    as_row_source,
    find_lengths,
    gather,
    gather_targets,
    read_all_as_tensor,
    read_all_rows,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """Inputs and targets of one split, in row order.

    ``x`` is a tensor (N, L, D) for sequences, or any other input of the model, including integer
    dtypes (token ids for ``nn.Embedding``, pixels; then set ``scale_inputs = False``). Instead of a
    tensor it may be any row source, which reads the rows of a batch when they are needed, such as
    images from a folder; see ``sluice.data.rows``. ``y`` is (N, O) or any other target of the
    loss, or a row source of targets. ``rows`` (N,) are the positions of the examples in the
    feature frame.
    """

    x: Tensor | RowSource
    y: Tensor | RowSource
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def is_in_memory(self) -> bool:
        """Whether inputs and targets are tensors, or a dict of tensors."""
        return isinstance(self.x, Tensor | DictRows) and isinstance(self.y, Tensor)

    @property
    def inputs(self) -> ModelInput:
        """Inputs of all examples in memory; only for few examples, as returned by ``take``."""
        return read_all_rows(self.x)

    @property
    def tensor(self) -> Tensor:
        """Inputs of all examples as one tensor in memory (N, ...).

        Raises:
            ContractError: The inputs are a dict.
        """
        return read_all_as_tensor(self.x, what="inputs")

    @property
    def targets(self) -> Tensor:
        """Targets of all examples in memory, (N, O) or any other shape."""
        return read_all_as_tensor(self.y, what="targets")

    def take(self, positions: NDArray[np.int64] | Tensor) -> "Examples":
        """Return chosen examples in memory, in the order of ``positions`` (B,)."""
        index = torch.as_tensor(positions)
        lengths_of = find_lengths(self.x)
        lengths = None if lengths_of is None else lengths_of(index)
        return Examples(
            x=as_row_source(gather(self.x, index), lengths=lengths),
            y=gather_targets(self.y, index),
            rows=self.rows[index.cpu().numpy()],
        )
