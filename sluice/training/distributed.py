"""Ranks that are processes of a torch.distributed group: gloo on processors, NCCL on GPUs.

``DistributedDataParallel`` sends gradients while the backward pass still runs. It averages over
ranks; a loss times ``world`` times the rank's share of the batch makes that the mean over rows.
"""

import contextlib
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sluice.base.errors import RankLost, SluiceError
from sluice.training.ranks import Ranks, Split

T = TypeVar("T")

_OF_THE_GROUP = re.compile(r"gloo|nccl|TCPStore|process ?group", re.IGNORECASE)
"""Gloo reports a lost connection as a RuntimeError of no type of its own."""


class GroupRanks(Ranks):
    """This process as a rank of the group that it joined."""

    def __init__(self) -> None:
        self.split = Split(rank=dist.get_rank(), world=dist.get_world_size())
        self._device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the model in ``DistributedDataParallel``, with the first rank's weights.

        It looks for parameters without a gradient, which costs a walk over the graph and makes
        torch say so once: else it lays out its messages anew after the first step. With three
        ranks or more the layout decides the order of sums, and a training that was resumed would
        not have the bits of one that was not (REPRO-4). Such parameters are also left alone then,
        as one process leaves them.
        """
        return DistributedDataParallel(
            model,
            find_unused_parameters=True,
            forward_sync_buffers=False,
            gradient_as_bucket_view=True,
        )

    def alone(self, model: nn.Module) -> contextlib.AbstractContextManager[None]:
        """Leave out sending; the next backward pass outside sends the sum."""
        assert isinstance(model, DistributedDataParallel)
        quiet: contextlib.AbstractContextManager[None] = model.no_sync()
        return quiet

    def total(self, values: Tensor) -> Tensor:
        """Return the sum over all ranks, where ``values`` are."""
        sums = values.detach().to(self._device, copy=True)
        dist.all_reduce(sums)
        return sums.to(values.device)

    def from_first(self, make: Callable[[], T]) -> T:
        """Send what ``make`` returned, or the error it raised on purpose, to all ranks."""
        content: list[T | SluiceError | None] = [None]
        if self.is_first:
            try:
                content[0] = make()
            except SluiceError as error:
                content[0] = error
        dist.broadcast_object_list(content, src=0)
        (received,) = content
        if isinstance(received, SluiceError):
            raise received
        return received  # type: ignore[return-value]


@contextlib.contextmanager
def joined_group(*, rank: int, world: int, meet: str, timeout_s: float) -> Iterator[Ranks]:
    """Be a rank of a gloo group inside; leave it on the way out.

    Args:
        rank: Of this process, from 0.
        world: Number of ranks.
        meet: Where the ranks find each other, as ``init_method`` of torch.distributed: a
            'file://' path that does not exist yet, or 'tcp://host:port'.
        timeout_s: Longest wait for another rank [s].

    Raises:
        RankLost: Another rank ended, or did not answer in time.
    """
    with told_when_lost(rank):
        dist.init_process_group(
            "gloo",
            init_method=meet,
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=timeout_s),
        )
        try:
            yield GroupRanks()
        finally:
            dist.destroy_process_group()


@contextlib.contextmanager
def told_when_lost(rank: int) -> Iterator[None]:
    """Raise ``RankLost`` for what torch raises inside when another rank is gone."""
    try:
        yield
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or _OF_THE_GROUP.search(str(error))):
            raise
        raise RankLost(
            f"All ranks must take part in every step; rank {rank} waited for another one in vain: "
            f"{str(error).partition('. ')[0][:300]}.",
            cause="The other process ended: its memory ran out, its machine was lost, or it "
            "raised an error of its own, which is then the one to look at.",
            fix="Run again: the training goes on from its last checkpoint.",
        ) from error
