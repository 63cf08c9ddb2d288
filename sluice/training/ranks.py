"""The processes that fit one network together, seen from one of them (TRAIN-1).

Every batch of (seed, epoch, position) is split by rows, in order: of B rows rank r takes those from
``B * r // world`` to ``B * (r + 1) // world``. The gradient is the mean over the rows of the whole
batch, however unequal the shares are; it is cut after it was added up. So every step is the step
of one process, to rounding, and the losses that are reported are those of all rows.

Equal to one process but for rounding: order, gradients, clipping, rates, steps, losses, stopping.
Not equal: dropout, which every rank draws for its own rows, from a stream of its own.

Shape legend: B = rows of a batch.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor, nn

from sluice.training.accumulation import Weigh

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Which rows of a batch a rank takes; without any other process it is all of them."""

    rank: int = 0
    world: int = 1

    def own(self, rows: Tensor) -> Tensor:
        """Return this rank's rows of a batch.

        A rank without any, as the batch has fewer rows than there are ranks, gets the first one:
        it takes part in every step, and its ``share`` is 0.
        """
        if self.world == 1:
            return rows
        start, stop = self._bounds(len(rows), self.rank)
        return rows[start:stop] if stop > start else rows[:1]

    def share(self, y: Tensor, weigh: Weigh) -> float:
        """Return how much of the weight of a whole batch with targets ``y`` is this rank's."""
        if self.world == 1:
            return 1.0
        bounds = [self._bounds(len(y), rank) for rank in range(self.world)]
        weights = [weigh(y[start:stop]) if stop > start else 0.0 for start, stop in bounds]
        # A batch that weighs nothing: the mean over it is NaN, and the loss shall say so.
        return weights[self.rank] / sum(weights) if sum(weights) else float("nan")

    def _bounds(self, num_rows: int, rank: int) -> tuple[int, int]:
        return num_rows * rank // self.world, num_rows * (rank + 1) // self.world


ALL = Split()


class Ranks:
    """One process alone: nothing is split, nothing is sent. Base of those that have company."""

    split = ALL

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that writes: logs, checkpoints, the result."""
        return self.split.rank == 0

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return what to call for the forward pass, so that a backward pass adds up gradients."""
        return model

    def alone(self, model: nn.Module) -> contextlib.AbstractContextManager[None]:
        """Keep the gradients of backward passes inside in this process, to be sent later.

        Args:
            model: As returned by ``wrap``.
        """
        del model
        return contextlib.nullcontext()

    def total(self, values: Tensor) -> Tensor:
        """Return the sum over all ranks, the same bits on each."""
        return values

    def from_first(self, make: Callable[[], T]) -> T:
        """Return what the first rank's ``make`` returned; it is called nowhere else.

        Raises:
            SluiceError: It raised one; so does every rank.
        """
        return make()


ONE = Ranks()
