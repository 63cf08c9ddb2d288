"""Rows of every batch of an epoch: a pure function of the seed, the epoch and the batch index.

The order does not depend on earlier batches, so a training continues at any batch of any epoch
without repeating the batches before it.

Shape legend: N = examples, B = rows of a batch.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from sluice.base.errors import ContractError
from sluice.base.seeding import derive_seed
from sluice.data.rows.order import MAX_SHUFFLED_ROWS, FeistelOrder, RowOrder, TableOrder
from sluice.data.rows.protocol import LengthsOf, find_lengths

_BLOCK_ROWS = 2**15
"""Number of rows whose order is computed at once, because a call of ``FeistelOrder.part`` costs
0.1 ms for any small number of rows."""

_POOL_BATCHES = 64
"""Number of batches in a pool, whose rows are sorted by length together. With 64, padding is a few
percent of all tokens for most distributions of lengths."""

_CPU = torch.device("cpu")


def shuffled_rows(num_rows: int, *, seed: int) -> RowOrder:
    """Return a shuffled order of ``range(num_rows)``, which depends only on the seed.

    For more than ``MAX_SHUFFLED_ROWS`` rows, each position of the order is computed when it is
    needed, in constant memory.
    """
    if num_rows > MAX_SHUFFLED_ROWS:
        return FeistelOrder(num_rows, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    return TableOrder(torch.randperm(num_rows, generator=generator))


def epoch_order(num_rows: int, *, seed: int, epoch: int) -> RowOrder:
    """Return the row order of one epoch.

    It depends only on (seed, epoch), so a training that resumes at any batch, with any number of
    loader processes, gets the same batches.
    """
    return shuffled_rows(num_rows, seed=derive_seed(seed, f"order_{epoch}"))


def example_seeds(rows: Tensor, *, seed: int, epoch: int) -> Tensor:
    """Return one seed per example, from 0 to 2^63 - 1, int64 (B,).

    A seed is a hash of (seed, epoch, row), so it does not depend on the other rows of the batch.

    Source:
        Steele, Lea and Flood (2014), "Fast Splittable Pseudorandom Number Generators": SplitMix64.
    """
    state = rows.numpy().astype(np.uint64)
    state += np.uint64(1)
    state *= np.uint64(0x9E3779B97F4A7C15)  # all products wrap modulo 2^64
    state += np.uint64(derive_seed(seed, f"augment_{epoch}"))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state ^= state >> np.uint64(shift)
        state *= np.uint64(factor)
    state ^= state >> np.uint64(31)
    return torch.from_numpy((state >> np.uint64(1)).astype(np.int64))


def require_lengths(source: object) -> LengthsOf:
    """Return the function that maps rows of a source to their lengths.

    Raises:
        ContractError: The source has no lengths.
    """
    lengths = find_lengths(source)
    if lengths is None:
        raise ContractError(
            "bucket_by_length requires a row source with the method 'lengths_of' or the attribute "
            f"'lengths', but {type(source).__name__} has neither.",
            cause="The examples of tensors and images have equal lengths. A row source of your own "
            "must return the lengths of its examples.",
            fix="Give the row source a method 'lengths_of(rows)' that returns one integer per row, "
            "or set training.bucket_by_length to false.",
        )
    return lengths


class BatchPlan:
    """Rows of the batches of every epoch.

    With ``lengths_of``, batches contain rows of similar lengths. The rows of 64 batches form a
    pool, which is sorted by length and split into batches in random order. Pools differ between
    epochs, so a row is combined with different rows in every epoch. The last batch of an epoch has
    the remaining rows.

    Args:
        num_rows: Number of examples (N).
        batch_rows: Rows of a batch; the last batch of an epoch may have fewer.
        seed: Base seed, from which the seed of each epoch's order is derived.
        lengths_of: Returns the lengths of rows; None to ignore lengths.
    """

    def __init__(
        self,
        num_rows: int,
        *,
        batch_rows: int,
        seed: int,
        lengths_of: LengthsOf | None = None,
    ) -> None:
        self.num_rows, self.batch_rows = num_rows, batch_rows
        self._seed, self._lengths_of = seed, lengths_of

    @property
    def num_batches(self) -> int:
        """Number of batches of an epoch."""
        return -(-self.num_rows // self.batch_rows)

    @property
    def max_rows(self) -> int:
        """Number of rows of the largest batch."""
        return min(self.batch_rows, self.num_rows)

    def sizes(self) -> Tensor:
        """Return the number of rows of each batch of an epoch, int64."""
        sizes = torch.full((self.num_batches,), self.batch_rows, dtype=torch.int64)
        sizes[-1:] = self.num_rows - (self.num_batches - 1) * self.batch_rows
        return sizes

    def batch(self, epoch: int, batch_index: int) -> Tensor:
        """Return the rows of one batch of an epoch; batches are counted from 0."""
        return next(self.batches(epoch, first_batch=batch_index))

    def batches(
        self, epoch: int, *, first_batch: int = 0, device: torch.device = _CPU
    ) -> Iterator[Tensor]:
        """Yield the rows of the batches of an epoch, from ``first_batch`` on, int64 (B,).

        Args:
            epoch: Number of the epoch, counted from 1.
            first_batch: Number of the first batch, counted from 0.
            device: Device of the rows.

        Cost:
            Independent of ``first_batch``.
        """
        order = epoch_order(self.num_rows, seed=self._seed, epoch=epoch)
        if self._lengths_of is not None:
            for rows in self._buckets(order, self._lengths_of, epoch, first_batch):
                yield rows.to(device)
            return
        block_rows = max(1, _BLOCK_ROWS // self.batch_rows) * self.batch_rows
        for start in range(first_batch * self.batch_rows, self.num_rows, block_rows):
            # The rows of many batches are moved at once, because a move synchronises the device.
            block = order.part(start, min(start + block_rows, self.num_rows)).to(device)
            yield from block.split(self.batch_rows)

    def _buckets(
        self, order: RowOrder, lengths_of: LengthsOf, epoch: int, first_batch: int
    ) -> Iterator[Tensor]:
        pool_rows = _POOL_BATCHES * self.batch_rows
        first_pool, num_skipped = divmod(first_batch, _POOL_BATCHES)
        for start in range(first_pool * pool_rows, self.num_rows, pool_rows):
            rows = order.part(start, min(start + pool_rows, self.num_rows))
            # A stable sort, so that rows of equal length stay in shuffled order.
            rows = rows[lengths_of(rows).argsort(stable=True)]
            seed = derive_seed(self._seed, f"buckets_{epoch}_{start // pool_rows}")
            generator = torch.Generator().manual_seed(seed)
            yield from _shuffled_batches(rows, self.batch_rows, generator)[num_skipped:]
            num_skipped = 0


def _shuffled_batches(rows: Tensor, batch_rows: int, generator: torch.Generator) -> list[Tensor]:
    """Split sorted rows into batches in random order; an incomplete batch is the last.

    The rows of the incomplete batch are taken from a random batch boundary, so that they are not
    always the longest rows.
    """
    num_full_batches, num_remaining_rows = divmod(len(rows), batch_rows)
    cut_start = int(torch.randint(num_full_batches + 1, (), generator=generator)) * batch_rows
    cut_end = cut_start + num_remaining_rows
    full_batches = torch.cat([rows[:cut_start], rows[cut_end:]]).reshape(
        num_full_batches, batch_rows
    )
    batches = [
        full_batches[index]
        for index in torch.randperm(num_full_batches, generator=generator).tolist()
    ]
    return [*batches, rows[cut_start:cut_end]] if num_remaining_rows else batches
