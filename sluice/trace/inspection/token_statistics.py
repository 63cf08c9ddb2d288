"""Statistics of token batches, and of the alignment of targets with input tokens."""

import weakref
from collections.abc import Iterable

import torch
from torch import Tensor

from sluice.trace.records.inputs import TokenRecord
from sluice.trace.records.losses import NextTokenTargets

_MIN_POSITIONS = 3
"""Minimum number of positions in a row of tokens."""
IGNORE_INDEX = -100
"""Target value that torch losses ignore by default (``ignore_index``)."""


def is_token_sequence(batch: Tensor) -> bool:
    """Return whether a batch contains integers, (rows, positions), with 3 or more positions."""
    return (
        batch.dim() == 2
        and batch.shape[1] >= _MIN_POSITIONS
        and batch.dtype in (torch.int64, torch.int32, torch.int16)
    )


class TokenCounts:
    """Counts rows of tokens over batches, such as the rows that begin with several BOS tokens.

    Args:
        batch: First batch, (rows, positions).
    """

    def __init__(self, batch: Tensor) -> None:
        self._first_token = int(batch[:, 0].to(torch.int64).mode().values)
        """Most frequent first token of a row in the first batch, for example BOS."""
        self._num_rows = 0
        self._num_positions = 0
        """Number of positions of a row in the last batch."""
        self._num_first_token_rows = 0
        """Number of rows that begin with the token ``_first_token``."""
        self._num_doubled_rows = 0
        """Number of rows that begin with the token ``_first_token`` twice and do not contain it
        again."""
        self._num_longer_rows = 0
        """Number of rows that begin with the token ``_first_token`` three or more times."""
        self._num_ignored_batches = 0
        """Number of batches that contain only the ignore index."""
        self._smallest, self._largest = 2**63 - 1, -(2**63)

    def add(self, batch: Tensor) -> None:
        """Add one batch."""
        ids = batch.detach()
        is_first = ids == self._first_token
        begins_with_first = is_first[:, 0]
        is_doubled = begins_with_first & is_first[:, 1] & (is_first.sum(1) == 2)
        is_longer = begins_with_first & is_first[:, 1] & is_first[:, 2]
        minimum, maximum = torch.aminmax(ids)
        # All values are read from the device at once.
        num_first, num_doubled, num_longer, smallest, largest = torch.stack(
            [begins_with_first.sum(), is_doubled.sum(), is_longer.sum(), minimum, maximum]
        ).tolist()
        self._num_first_token_rows += num_first
        self._num_doubled_rows += num_doubled
        self._num_longer_rows += num_longer
        self._smallest, self._largest = min(self._smallest, smallest), max(self._largest, largest)
        self._num_ignored_batches += smallest == largest == IGNORE_INDEX
        self._num_positions = ids.shape[1]
        self._num_rows += ids.shape[0]

    def record(self) -> TokenRecord:
        """Return the counts so far."""
        return TokenRecord(
            num_positions=self._num_positions,
            smallest=self._smallest,
            largest=self._largest,
            first=self._first_token,
            num_rows=self._num_rows,
            num_ignored=self._num_ignored_batches,
            num_first=self._num_first_token_rows,
            num_doubled=self._num_doubled_rows,
            num_longer=self._num_longer_rows,
        )


def align_with_next_tokens(
    ids: Tensor, targets: Tensor, is_supervised: Tensor
) -> NextTokenTargets | None:
    """Return how targets are aligned with the input tokens of a network.

    Args:
        ids: Input tokens, (rows, positions).
        targets: Targets of any shape, with rows x positions or rows x (positions - 1) elements.
        is_supervised: Mask of the supervised (not ignored) targets; same shape as ``targets``.

    Returns:
        The alignment; None if the number of targets does not match.
    """
    num_rows, num_positions = ids.shape
    if targets.numel() not in (num_rows * num_positions, num_rows * (num_positions - 1)):
        return None
    targets, is_supervised = targets.reshape(num_rows, -1), is_supervised.reshape(num_rows, -1)
    num_targets = targets.shape[1]
    # Target t corresponds to token t + 1; the last target may have no token.
    next_ids = ids[:, 1 : num_targets + 1]
    is_supervised_next = is_supervised[:, : next_ids.shape[1]]
    is_next = (targets[:, : next_ids.shape[1]] == next_ids) & is_supervised_next
    # If a network shifts its input itself, its targets are the input tokens.
    is_same = (targets == ids[:, :num_targets]) & is_supervised
    next_share = float(is_next.sum()) / max(int(is_supervised_next.sum()), 1)
    same_share = (
        float(is_same.sum()) / max(int(is_supervised.sum()), 1)
        if num_targets == num_positions
        else 0.0
    )
    positions = torch.arange(num_targets, device=ids.device)
    last_supervised = torch.where(is_supervised, positions, -1).amax(1)
    # Number of ignored targets at the end of each row.
    tail_lengths = num_targets - 1 - last_supervised
    # Rows in which every target is ignored have no last supervised target.
    has_target_and_tail = (tail_lengths > 0) & (last_supervised >= 0)
    last_targets = targets.gather(1, last_supervised.clamp(min=0)[:, None])[:, 0]
    last_targets = last_targets[has_target_and_tail]
    distinct_last_targets, last_target_counts = last_targets.unique(return_counts=True)
    num_last_targets = last_targets.numel()
    return NextTokenTargets(
        num_rows=num_rows,
        num_positions=num_targets,
        is_shifted=num_targets < num_positions,
        targets_are_inputs=same_share > next_share,
        next_share=max(next_share, same_share),
        num_tails=int((tail_lengths > 0).sum()),
        shortest_tail=int(tail_lengths.min()) if num_rows else 0,
        longest_tail=int(tail_lengths.max()) if num_rows else 0,
        num_last=distinct_last_targets.numel(),
        last_share=int(last_target_counts.max()) / num_last_targets if num_last_targets else 0.0,
        num_unsupervised=int((last_supervised < 0).sum()),
    )


def best_token_alignment(
    inputs: Iterable["weakref.ref[Tensor]"], targets: Tensor, is_supervised: Tensor
) -> NextTokenTargets | None:
    """Return the alignment of targets with the token input that matches most targets.

    Args:
        inputs: References to the inputs of the network.
        targets: Targets of the loss.
        is_supervised: Mask of the supervised (not ignored) targets; same shape as ``targets``.

    Returns:
        The alignment; None if no token input has a matching size.
    """
    alignments = (
        align_with_next_tokens(ids, targets, is_supervised)
        for ref in inputs
        if (ids := ref()) is not None and is_token_sequence(ids)
    )
    return max(
        (alignment for alignment in alignments if alignment is not None),
        key=lambda alignment: alignment.next_share,
        default=None,
    )
