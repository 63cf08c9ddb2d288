"""Ranks that are processes of a torch.distributed group: gloo on CPUs, NCCL on GPUs.

``DistributedDataParallel`` sends gradients during the backward pass and averages them over ranks.
Multiplying the loss by ``world_size`` and the rank's share of the batch turns that into the mean
over rows.
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
from sluice.training.ranks import Ranks, RankShard

T = TypeVar("T")

_LOST_CONNECTION = re.compile(r"gloo|nccl|TCPStore|process ?group", re.IGNORECASE)
"""Matches gloo's RuntimeError for a lost connection, which has no specific type."""


class DistributedRanks(Ranks):
    """This process as a rank of the torch.distributed group that it joined."""

    def __init__(self) -> None:
        self.shard = RankShard(rank=dist.get_rank(), world_size=dist.get_world_size())
        self._device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the model in ``DistributedDataParallel``, with the first rank's weights.

        It searches for unused parameters, which costs a traversal of the graph and one warning of
        torch. Otherwise it would rebuild its gradient buckets after the first step. With three
        ranks or more the buckets determine the order of sums, and a resumed training would not have
        the bits of an uninterrupted one. Unused parameters are also left unchanged, as in one
        process.
        """
        return DistributedDataParallel(
            model,
            find_unused_parameters=True,
            forward_sync_buffers=False,
            gradient_as_bucket_view=True,
        )

    def no_sync(self, model: nn.Module) -> contextlib.AbstractContextManager[None]:
        """Skip sending gradients; the next backward pass outside sends the sum."""
        assert isinstance(model, DistributedDataParallel)
        context: contextlib.AbstractContextManager[None] = model.no_sync()
        return context

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """Return the sum over all ranks, on the device of ``values``."""
        sums = values.detach().to(self._device, copy=True)
        dist.all_reduce(sums)
        return sums.to(values.device)

    def broadcast_from_first(self, make: Callable[[], T]) -> T:
        """Send what ``make`` returned, or the ``SluiceError`` that it raised, to all ranks."""
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
def joined_group(
    *, rank: int, world_size: int, init_method: str, timeout_s: float
) -> Iterator[Ranks]:
    """Join a gloo process group as a rank; leave it at the end of the context.

    Args:
        rank: Rank of this process, from 0.
        world_size: Number of ranks.
        init_method: URL at which the ranks connect, as for
            ``torch.distributed.init_process_group``: a 'file://' path that does not exist yet, or
            'tcp://host:port'.
        timeout_s: Longest wait for another rank [s].

    Raises:
        RankLost: Another rank ended, or did not answer in time.
    """
    with raising_rank_lost(rank):
        dist.init_process_group(
            "gloo",
            init_method=init_method,
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=timeout_s),
        )
        try:
            yield DistributedRanks()
        finally:
            dist.destroy_process_group()


@contextlib.contextmanager
def raising_rank_lost(rank: int) -> Iterator[None]:
    """Raise ``RankLost`` in place of torch's errors when another rank was lost."""
    try:
        yield
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or _LOST_CONNECTION.search(str(error))):
            raise
        raise RankLost(
            f"All ranks must take part in every step, but rank {rank} got no answer from another "
            f"rank: {str(error).partition('. ')[0][:300]}.",
            cause="The other process ended: its memory ran out, its machine was lost, or it "
            "raised an error, which is then the one to fix.",
            fix="Run again: the training resumes from its last checkpoint.",
        ) from error
