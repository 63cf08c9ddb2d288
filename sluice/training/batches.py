"""Yields the batches of every epoch, in an order that depends only on the seed and the epoch."""

import functools
import math
import os
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sluice.base.seeding import derive_seed
from sluice.training.orphans import end_with_parent
from sluice.training.ranks import WHOLE_BATCH, RankShard
from sluice.workloads.workload import Examples

Batch = tuple[Tensor, Tensor]
"""Inputs of this rank's rows, and targets of all rows of the batch."""


def epoch_order(num_rows: int, *, seed: int, epoch: int) -> Tensor:
    """Return the row order of one epoch, on the CPU.

    The order depends only on (seed, epoch). So a training that is resumed after any epoch, with any
    number of loader processes, gets the same batches.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, f"order_{epoch}"))
    return torch.randperm(num_rows, generator=generator)


class Batches:
    """The batches of a training, by epoch.

    Args:
        rows: Examples from which the batches are gathered.
        batch_rows: Rows of a batch; the last batch of an epoch may have fewer.
        seed: Base seed, from which the seed of each epoch's order is derived.
        device: Device of the returned batches.
        workers: Number of loader processes that gather batches in advance, useful if rows are slow
            to read (memory-mapped). With 0, this process gathers them. Loader processes use no
            random numbers, so their number does not change the result.
        shard: Selects the rows of a batch that belong to this process; all rows if there are no
            other ranks.
    """

    def __init__(
        self,
        rows: Examples,
        *,
        batch_rows: int,
        seed: int,
        device: torch.device,
        workers: int,
        shard: RankShard = WHOLE_BATCH,
    ) -> None:
        self._rows = rows
        self._batch_rows = batch_rows
        self._seed = seed
        self._device = device
        self._dataset = _BatchDataset(rows, shard)
        self._sampler = _EpochSampler()
        self._loader: DataLoader[Batch] | None = None
        # Loader processes cannot share tensors on a device.
        if workers and rows.x.device.type == "cpu":
            self._loader = DataLoader(
                self._dataset,
                sampler=self._sampler,
                batch_size=None,
                num_workers=workers,
                persistent_workers=True,
                # Loader processes inherit open files and locks, so they must not outlive this
                # process.
                worker_init_fn=functools.partial(_init_worker, os.getpid()),
                # Without this argument the loader would use torch's global generator.
                generator=torch.Generator().manual_seed(derive_seed(seed, "loader")),
            )

    @property
    def steps(self) -> int:
        """Number of batches of an epoch."""
        return math.ceil(len(self._rows) / self._batch_rows)

    @property
    def max_rows(self) -> int:
        """Rows of the largest batch."""
        return min(self._batch_rows, len(self._rows))

    def sizes(self) -> list[int]:
        """Return the number of rows of each batch of an epoch."""
        full, rest = divmod(len(self._rows), self._batch_rows)
        return [self._batch_rows] * full + [rest] * bool(rest)

    def first(self, num_rows: int) -> Batch:
        """Return the first rows, in row order."""
        x, y = self._rows.x[:num_rows], self._rows.y[:num_rows]
        return x.to(self._device), y.to(self._device)

    def iter_epoch(self, epoch: int) -> Iterator[Batch]:
        """Yield the batches of one epoch, counted from 1."""
        order = epoch_order(len(self._rows), seed=self._seed, epoch=epoch)
        if self._loader is not None:
            self._sampler.batches = order.split(self._batch_rows)
            for x, y in self._loader:
                yield x.to(self._device), y.to(self._device)
            return
        # The whole order is moved at once. Moving it batch by batch would synchronise the device at
        # every step.
        for rows in order.to(self._rows.x.device).split(self._batch_rows):
            x, y = self._dataset[rows]
            yield x.to(self._device), y.to(self._device)


def _init_worker(parent: int, _worker: int) -> None:
    end_with_parent(parent)


class _EpochSampler:
    """Sampler of the loader; ``batches`` is replaced at the start of every epoch."""

    batches: Sequence[Tensor] = ()
    """Row numbers of each batch of the epoch."""

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class _BatchDataset(Dataset[Batch]):
    """Dataset whose index is the row numbers of a whole batch."""

    def __init__(self, rows: Examples, shard: RankShard) -> None:
        self._x, self._y, self._shard = rows.x, rows.y, shard

    def __getitem__(self, rows: Tensor) -> Batch:
        return self._x.index_select(0, self._shard.local_rows(rows)), self._y.index_select(0, rows)
