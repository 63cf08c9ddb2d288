"""Ranks: the processes that train one network together; a ``Ranks`` object connects one to others.

Every batch is split by rows, in order. Of B rows, rank r takes rows ``B * r // world_size`` to
``B * (r + 1) // world_size``. The gradient is the mean over all rows of the batch, even if the
shards have different sizes. It is clipped after the sum over ranks. So every step equals the step
of a single process up to rounding, and reported losses cover all rows.

Equal to a single process up to rounding: row order, gradients, clipping, learning rates, steps,
losses, and the epoch at which training stops.
Not equal: dropout, because every rank samples the masks of its rows from its own random stream.

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
    """Selects the rows of a batch that belong to one rank; all rows if there is only one rank."""

    rank: int = 0
    """Number of the rank, from 0."""
    world_size: int = 1
    """Number of ranks."""

    def local_rows(self, rows: Tensor) -> Tensor:
        """Return this rank's rows of a batch.

        If the batch has fewer rows than there are ranks, some ranks have no rows. Such a rank gets
        the first row, because every rank must take part in every step, and has the ``share`` 0.
        """
        if self.world_size == 1:
            return rows
        start, stop = self._bounds(len(rows), self.rank)
        return rows[start:stop] if stop > start else rows[:1]

    def share(self, y: Tensor, loss_weight: LossWeight) -> float:
        """Return the share of a batch's loss weight that belongs to this rank.

        Args:
            y: Targets of the whole batch.
            loss_weight: Maps targets to the number of items over which the loss averages.
        """
        if self.world_size == 1:
            return 1.0
        bounds = [self._bounds(len(y), rank) for rank in range(self.world_size)]
        weights = [loss_weight(y[start:stop]) if stop > start else 0.0 for start, stop in bounds]
        # The mean over a batch of weight 0 is NaN, which must be visible in the loss.
        return weights[self.rank] / sum(weights) if sum(weights) else float("nan")

    def _bounds(self, num_rows: int, rank: int) -> tuple[int, int]:
        return num_rows * rank // self.world_size, num_rows * (rank + 1) // self.world_size


WHOLE_BATCH = RankShard()
"""Shard of a single process, which contains all rows of a batch."""


class Ranks:
    """Communication of one process with the ranks of its training.

    This class is for a training in a single process, in which nothing is split or sent.
    ``DistributedRanks`` overrides this class for several processes.
    """

    shard = WHOLE_BATCH

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that writes logs, checkpoints and the result."""
        return self.shard.rank == 0

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the module for forward passes; its backward pass averages gradients over ranks."""
        return model

    def no_sync(self, model: nn.Module) -> contextlib.AbstractContextManager[None]:
        """Accumulate the gradients of backward passes inside the context without sending them.

        Args:
            model: As returned by ``wrap``.
        """
        del model
        return contextlib.nullcontext()

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """Return the sum over all ranks, with the same bits on each rank."""
        return values

    def broadcast_from_first(self, make: Callable[[], T]) -> T:
        """Return the result of the first rank's ``make``; other ranks do not call it.

        Raises:
            SluiceError: Raised by ``make``; every rank raises it.
        """
        return make()


SINGLE_PROCESS = Ranks()
"""Training in a single process, without other ranks."""
