"""The batches of every epoch, in an order that nothing but seed and epoch decides (REPRO-3)."""

import functools
import os
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sluice.base.seeding import derive_seed
from sluice.training.orphans import end_with_parent
from sluice.training.ranks import ALL, Split
from sluice.workloads.workload import Examples

Batch = tuple[Tensor, Tensor]
"""Inputs of this rank's rows, and the targets of all rows."""


def epoch_order(num_rows: int, *, seed: int, epoch: int) -> Tensor:
    """Return the rows in the order of one epoch, on the CPU.

    It follows from (seed, epoch) alone, so a training that goes on after any epoch, with any
    number of loader processes, sees the same batches.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, f"order_{epoch}"))
    return torch.randperm(num_rows, generator=generator)


class Batches:
    """The batches of a training, epoch by epoch.

    Args:
        rows: What to gather from.
        batch_rows: Rows of a batch; the last of an epoch may have fewer.
        seed: Base seed; the order of every epoch has its own, derived from it.
        device: Where a batch is handed out.
        workers: Processes that gather ahead, for rows that are slow to read (memory-mapped); 0
            gathers in this one. They draw nothing, so their number changes no bit.
        split: Which rows of a batch are this process's; all of them when it is alone.
    """

    def __init__(
        self,
        rows: Examples,
        *,
        batch_rows: int,
        seed: int,
        device: torch.device,
        workers: int,
        split: Split = ALL,
    ) -> None:
        self._rows = rows
        self._batch_rows = batch_rows
        self._seed = seed
        self._device = device
        self._gather = _Gather(rows, split)
        self._order = _Order()
        self._loader: DataLoader[Batch] | None = None
        # Processes cannot share what lies on a device.
        if workers and rows.x.device.type == "cpu":
            self._loader = DataLoader(
                self._gather,
                sampler=self._order,
                batch_size=None,
                num_workers=workers,
                persistent_workers=True,
                # They hold what this process has open, its locks among it: none may outlive it.
                worker_init_fn=functools.partial(_begin, os.getpid()),
                # Without one of its own the loader draws from the global generator.
                generator=torch.Generator().manual_seed(derive_seed(seed, "loader")),
            )

    @property
    def steps(self) -> int:
        """Batches of an epoch."""
        return -(-len(self._rows) // self._batch_rows)

    @property
    def largest(self) -> int:
        """Rows of the largest batch."""
        return min(self._batch_rows, len(self._rows))

    def sizes(self) -> list[int]:
        """Return the rows of each batch of an epoch."""
        full, rest = divmod(len(self._rows), self._batch_rows)
        return [self._batch_rows] * full + [rest] * bool(rest)

    def first(self, num_rows: int) -> Batch:
        """Return the first rows, in row order."""
        x, y = self._rows.x[:num_rows], self._rows.y[:num_rows]
        return x.to(self._device), y.to(self._device)

    def of(self, epoch: int) -> Iterator[Batch]:
        """Yield the batches of one epoch, counted from 1."""
        order = epoch_order(len(self._rows), seed=self._seed, epoch=epoch)
        if self._loader is not None:
            self._order.parts = order.split(self._batch_rows)
            for x, y in self._loader:
                yield x.to(self._device), y.to(self._device)
            return
        # In one go: an order that goes to a device part by part makes it wait at every step.
        for part in order.to(self._rows.x.device).split(self._batch_rows):
            x, y = self._gather[part]
            yield x.to(self._device), y.to(self._device)


def _begin(parent: int, _worker: int) -> None:
    end_with_parent(parent)


class _Order:
    """What the loader reads its rows from; another one every epoch."""

    parts: Sequence[Tensor] = ()

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)


class _Gather(Dataset[Batch]):
    """The rows, by whole batches."""

    def __init__(self, rows: Examples, split: Split) -> None:
        self._x, self._y, self._split = rows.x, rows.y, split

    def __getitem__(self, part: Tensor) -> Batch:
        return self._x.index_select(0, self._split.own(part)), self._y.index_select(0, part)
