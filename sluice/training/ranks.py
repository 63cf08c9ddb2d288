"""Ranks: the processes that train one network together, seen from one of them.

Every batch of (seed, epoch, position) is split by rows, in order: of B rows, rank r takes rows
``B * r // world_size`` to ``B * (r + 1) // world_size``. The gradient is the mean over the rows of
the whole batch, however unequal the shards are, and is clipped after the sum. So every step equals
the step of one process, up to rounding, and reported losses cover all rows.

Equal to one process up to rounding: order, gradients, clipping, rates, steps, losses, stopping.
Not equal: dropout, which every rank samples for its own rows from its own stream.

Shape legend: B = rows of a batch.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor, nn

from sluice.training.accumulation import LossWeight

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShard:
    """Rows of a batch that belong to one rank; all rows without other ranks."""

    rank: int = 0
    world_size: int = 1

    def local_rows(self, rows: Tensor) -> Tensor:
        """Return this rank's rows of a batch.

        A rank without rows, because the batch has fewer rows than there are ranks, gets the first
        row: it takes part in every step, and its ``share`` is 0.
        """
        if self.world_size == 1:
            return rows
        start, stop = self._bounds(len(rows), self.rank)
        return rows[start:stop] if stop > start else rows[:1]

    def share(self, y: Tensor, loss_weight: LossWeight) -> float:
        """Return this rank's share of the weight of a whole batch with targets ``y``."""
        if self.world_size == 1:
            return 1.0
        bounds = [self._bounds(len(y), rank) for rank in range(self.world_size)]
        weights = [loss_weight(y[start:stop]) if stop > start else 0.0 for start, stop in bounds]
        # A batch of weight 0 has a mean of NaN, which the loss must show.
        return weights[self.rank] / sum(weights) if sum(weights) else float("nan")

    def _bounds(self, num_rows: int, rank: int) -> tuple[int, int]:
        return num_rows * rank // self.world_size, num_rows * (rank + 1) // self.world_size


WHOLE_BATCH = RankShard()


class Ranks:
    """A single process: nothing is split or sent. Base class of distributed ranks."""

    shard = WHOLE_BATCH

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that writes logs, checkpoints and the result."""
        return self.shard.rank == 0

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the module for the forward pass; its backward pass sums gradients over ranks."""
        return model

    def no_sync(self, model: nn.Module) -> contextlib.AbstractContextManager[None]:
        """Accumulate gradients of backward passes inside without sending them.

        Args:
            model: As returned by ``wrap``.
        """
        del model
        return contextlib.nullcontext()

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """Return the sum over all ranks, with the same bits on each."""
        return values

    def broadcast_from_first(self, make: Callable[[], T]) -> T:
        """Return the result of the first rank's ``make``; other ranks do not call it.

        Raises:
            SluiceError: Raised by ``make``; every rank raises it.
        """
        return make()


SINGLE_PROCESS = Ranks()
