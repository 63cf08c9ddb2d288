"""Ranks that are processes of a torch.distributed group: gloo on CPUs, NCCL on GPUs.

``DistributedDataParallel`` all-reduces gradients during the backward pass to their mean over ranks.
The loss of each rank is multiplied by ``world_size`` and by the rank's share of the batch. So the
mean over ranks equals the mean over all rows.
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
"""Matches the messages of torch about a lost connection. The type of the error is not sufficient,
because it may be RuntimeError."""


class DistributedRanks(Ranks):
    """Communication of this process with the other ranks of its torch.distributed group."""

    def __init__(self) -> None:
        self.shard = RankShard(rank=dist.get_rank(), world_size=dist.get_world_size())
        self._device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the model in ``DistributedDataParallel``, with the first rank's weights.

        ``find_unused_parameters`` is on, although it costs a traversal of the graph in every step
        and one warning of torch, for two reasons:

        - Without this option, ``DistributedDataParallel`` rebuilds its gradient buckets after the
          first step. With three or more ranks the buckets determine the order of summation, so a
          resumed training would differ bitwise from an uninterrupted training.
        - Unused parameters do not change, as with a single process.
        """
        return DistributedDataParallel(
            model,
            find_unused_parameters=True,
            forward_sync_buffers=False,
            gradient_as_bucket_view=True,
        )

    def no_sync(self, model: nn.Module) -> contextlib.AbstractContextManager[None]:
        """Accumulate gradients without synchronizing them between ranks.

        The next backward pass outside the context synchronizes the sum.
        """
        assert isinstance(model, DistributedDataParallel)
        context: contextlib.AbstractContextManager[None] = model.no_sync()
        return context

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """Return the sum over all ranks, on the device of ``values``."""
        sums = values.detach().to(self._device, copy=True)
        dist.all_reduce(sums)
        return sums.to(values.device)

    def broadcast_from_first(self, make: Callable[[], T]) -> T:
        """Call ``make`` on the first rank; return its result, or raise its error, on all ranks.

        Only a ``SluiceError`` is sent to the other ranks. After any other error of ``make``, the
        other ranks wait until the first rank ends, and then raise ``RankLost``.
        """
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
    """Join a gloo process group as one rank, and leave the group at the end of the context.

    Args:
        rank: Rank of this process, from 0.
        world_size: Number of ranks.
        init_method: URL at which the ranks connect, as for
            ``torch.distributed.init_process_group``: a 'file://' path that does not exist yet, or
            'tcp://host:port'.
        timeout_s: Longest wait for another rank [s].

    Raises:
        RankLost: Another rank ended, or did not answer within ``timeout_s``.
    """
    with convert_rank_errors(rank):
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
def convert_rank_errors(rank: int) -> Iterator[None]:
    """Convert torch's errors about a lost rank to ``RankLost``.

    Args:
        rank: Rank of this process, for the message.
    """
    try:
        yield
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or _LOST_CONNECTION.search(str(error))):
            raise
        raise RankLost(
            f"All ranks must take part in every step, but rank {rank} got no answer from another "
            f"rank: {str(error).partition('. ')[0][:300]}.",
            cause="The other process ended: it ran out of memory, its machine was lost, or it "
            "raised an error.",
            fix="If the other process reported an error, fix that first. Then run again: the "
            "training resumes from its last checkpoint.",
        ) from error
