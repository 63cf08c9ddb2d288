"""What stands at the beginning of rows of tokens, and how targets lie beside them."""

import torch
from torch import Tensor

from sluice.trace.evidence.inputs import TokenFact
from sluice.trace.evidence.losses import NextTokens

_LEAST_POSITIONS = 3
IGNORED = -100
"""The target that torch's losses leave out."""


def are_tokens(batch: Tensor) -> bool:
    """Tell whether a batch is whole numbers of shape (rows, positions)."""
    return (
        batch.dim() == 2
        and batch.shape[1] >= _LEAST_POSITIONS
        and batch.dtype in (torch.int64, torch.int32, torch.int16)
    )


class TokenCounts:
    """Counts over batches of tokens.

    Args:
        batch: The first one, (rows, positions).
    """

    def __init__(self, batch: Tensor) -> None:
        self._first = int(batch[:, 0].to(torch.int64).mode().values)
        self._rows = self._positions = self._num_first = self._doubled = self._longer = 0
        self._ignored = 0
        self._low, self._high = 2**63 - 1, -(2**63)

    def add(self, batch: Tensor) -> None:
        """Take one batch."""
        ids = batch.detach()
        is_first = ids == self._first
        begins = is_first[:, 0]
        doubled = begins & is_first[:, 1] & (is_first.sum(1) == 2)
        longer = begins & is_first[:, 1] & is_first[:, 2]
        low, high = torch.aminmax(ids)
        told = torch.stack([begins.sum(), doubled.sum(), longer.sum(), low, high]).tolist()
        self._num_first += told[0]
        self._doubled += told[1]
        self._longer += told[2]
        self._low, self._high = min(self._low, told[3]), max(self._high, told[4])
        self._ignored += told[3] == told[4] == IGNORED
        self._positions = ids.shape[1]
        self._rows += ids.shape[0]

    def fact(self) -> TokenFact:
        """Return what was counted."""
        return TokenFact(
            num_positions=self._positions,
            smallest=self._low,
            largest=self._high,
            first=self._first,
            num_rows=self._rows,
            num_ignored=self._ignored,
            num_first=self._num_first,
            num_doubled=self._doubled,
            num_longer=self._longer,
        )


def next_tokens(ids: Tensor, targets: Tensor, counts: Tensor) -> NextTokens | None:
    """Return how targets lie beside the tokens a network was given.

    Args:
        ids: (rows, positions).
        targets: Any shape; rows x positions of them, or one position less.
        counts: Of the same shape: which targets are not ignored.

    Returns:
        None when they do not fit.
    """
    rows, positions = ids.shape
    if targets.numel() not in (rows * positions, rows * (positions - 1)):
        return None
    targets, counts = targets.reshape(rows, -1), counts.reshape(rows, -1)
    width = targets.shape[1]
    # Place t stands beside the token t + 1; that of the last place may be beyond the input.
    beside = ids[:, 1 : width + 1]
    seen = counts[:, : beside.shape[1]]
    is_next = (targets[:, : beside.shape[1]] == beside) & seen
    # A network that shifts its input itself is given what it is to tell.
    is_same = (targets == ids[:, :width]) & counts
    next_share = float(is_next.sum()) / max(int(seen.sum()), 1)
    same_share = float(is_same.sum()) / max(int(counts.sum()), 1) if width == positions else 0.0
    place = torch.arange(width, device=ids.device)
    last = torch.where(counts, place, -1).amax(1)
    tails = width - 1 - last
    ends = (tails > 0) & (last >= 0)
    final = targets.gather(1, last.clamp(min=0)[:, None])[:, 0][ends]
    kinds, frequency = final.unique(return_counts=True)
    num_ends = int(ends.sum())
    return NextTokens(
        num_rows=rows,
        num_positions=width,
        is_cut=width < positions,
        is_own=same_share > next_share,
        next_share=max(next_share, same_share),
        num_tails=int((tails > 0).sum()),
        shortest_tail=int(tails.min()) if rows else 0,
        longest_tail=int(tails.max()) if rows else 0,
        num_last=kinds.numel(),
        last_share=int(frequency.max()) / num_ends if num_ends else 0.0,
        num_unsupervised=int((last < 0).sum()),
    )
