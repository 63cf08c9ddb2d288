"""Bucketing by length: batches of rows of similar length, as an order of rows."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from sluice.base.errors import ContractError
from sluice.data.rows.order import RowOrder

CHUNK_BATCHES = 64
"""Default number of batches whose rows are sorted together."""


class BucketedOrder:
    """Order in which consecutive rows have similar lengths, so that batches need little padding.

    The given order is cut into chunks of ``chunk_batches`` batches. The rows of a chunk are sorted
    by length, rows of equal length remaining in the given order, and cut into batches, which are
    shuffled. An incomplete batch is the last one of the order. The result is a function of its
    arguments alone, and a part of it needs the lengths of the chunks that contain it.

    Args:
        order: Shuffled order of the epoch.
        lengths_of: Returns the lengths of rows, int64 (B,), such as ``TokenRows.lengths_of``; or
            the lengths of all rows (N,).
        batch_rows: Rows of a batch.
        seed: Seed of the epoch; shuffles the batches of every chunk.
        chunk_batches: Batches of a chunk. More need less padding, and are less random.

    Raises:
        ContractError: A number is not positive.
    """

    def __init__(
        self,
        order: RowOrder,
        lengths_of: Callable[[Tensor], Tensor] | Tensor,
        *,
        batch_rows: int,
        seed: int,
        chunk_batches: int = CHUNK_BATCHES,
    ) -> None:
        if min(batch_rows, chunk_batches) < 1:
            raise ContractError(
                f"'batch_rows' and 'chunk_batches' must be at least 1, got {batch_rows} and "
                f"{chunk_batches}.",
                fix="Correct these arguments.",
            )
        self._order, self._batch_rows, self._seed = order, batch_rows, seed
        self._lengths_of = lengths_of.__getitem__ if isinstance(lengths_of, Tensor) else lengths_of
        self._chunk_rows = batch_rows * chunk_batches
        self._newest: tuple[int, Tensor] | None = None

    def __len__(self) -> int:
        return len(self._order)

    def part(self, start: int, stop: int) -> Tensor:
        """Return the rows at the positions ``start`` to ``stop``, int64."""
        stop = min(stop, len(self))
        if start >= stop:
            return torch.empty(0, dtype=torch.int64)
        chunks = range(start // self._chunk_rows, (stop - 1) // self._chunk_rows + 1)
        rows = torch.cat([self._chunk(number) for number in chunks])
        first = chunks.start * self._chunk_rows
        return rows[start - first : stop - first]

    def _chunk(self, number: int) -> Tensor:
        if self._newest is not None and self._newest[0] == number:
            return self._newest[1]
        start = number * self._chunk_rows
        rows = self._order.part(start, min(start + self._chunk_rows, len(self)))
        rows = rows[self._lengths_of(rows).argsort(stable=True)]
        rest = len(rows) % self._batch_rows
        batches = rows[: len(rows) - rest].view(-1, self._batch_rows)
        shuffled = np.random.default_rng([self._seed, number]).permutation(len(batches))
        found = torch.cat([batches[torch.from_numpy(shuffled)].flatten(), rows[len(rows) - rest :]])
        self._newest = number, found
        return found


def bucketed_batches(
    order: RowOrder,
    lengths_of: Callable[[Tensor], Tensor] | Tensor,
    *,
    batch_rows: int,
    seed: int,
    chunk_batches: int = CHUNK_BATCHES,
    first_batch: int = 0,
) -> Iterator[Tensor]:
    """Yield the batches of a bucketed order; see ``BucketedOrder``.

    Args:
        order: As for ``BucketedOrder``.
        lengths_of: As for ``BucketedOrder``.
        batch_rows: As for ``BucketedOrder``.
        seed: As for ``BucketedOrder``.
        chunk_batches: As for ``BucketedOrder``.
        first_batch: Number of the first batch to yield, to continue inside an epoch.
    """
    bucketed = BucketedOrder(
        order, lengths_of, batch_rows=batch_rows, seed=seed, chunk_batches=chunk_batches
    )
    for start in range(first_batch * batch_rows, len(order), batch_rows):
        yield bucketed.part(start, start + batch_rows)
