"""Running statistics of the columns of a network's input."""

import math

import torch
from torch import Tensor

from sluice.trace.evidence.inputs import ColumnFact

MOST_COLUMNS = 64
_MOST_NUMBERS = 2**16
_MOST_TOGETHER = 24
"""Columns whose correlations are kept."""


def has_channels(batch: Tensor) -> bool:
    """Tell whether images of several channels stand channels first, as convolutions take them."""
    if batch.dim() < 4 or batch[0].numel() <= MOST_COLUMNS:
        return False
    return 2 <= batch.shape[1] <= MOST_COLUMNS and batch.shape[1] < min(batch.shape[2:])


class ColumnSums:
    """Count, sums and extremes of each column, and what columns have to do with each other.

    Args:
        batch: The first batch of floating point numbers, (rows, ...); later ones of another width
            are left out.
        by_channel: A column is a channel, (rows, channels, ...).
    """

    def __init__(self, batch: Tensor, *, by_channel: bool = False) -> None:
        row = batch[0].numel()
        self.by_position = not by_channel and (row <= MOST_COLUMNS or batch.dim() < 3)
        self._axis = 1 if by_channel else -1
        self._width = row if self.by_position else batch.shape[self._axis]
        step = -(-self._width // MOST_COLUMNS)
        self._places = range(0, self._width, step)
        self._step = step
        num = len(self._places)
        self._count = torch.zeros(num, dtype=torch.float64)
        self._sum, self._squares = self._count.clone(), self._count.clone()
        self._shift = torch.zeros(num, dtype=torch.float64)
        self._low = torch.full((num,), torch.inf, dtype=torch.float64)
        self._high = -self._low
        self._products = torch.zeros((min(num, _MOST_TOGETHER),) * 2, dtype=torch.float64)
        self._last: Tensor | None = None
        self._changes, self._num_changes = self._count.clone(), 0

    def add(self, batch: Tensor) -> None:
        """Take one batch; one of another width is left out."""
        values = batch.detach()
        row = values[0].numel()
        if values.dim() < 2 and self._axis == 1:
            return
        if (row if self.by_position else values.shape[self._axis]) != self._width:
            return
        if self._axis == 1:
            values = values.movedim(1, -1)
        self._add_changes(values)
        table = values.reshape(-1, self._width)[:, :: self._step]
        if table.numel() > _MOST_NUMBERS:
            table = table[:: -(-table.numel() // _MOST_NUMBERS)]
        table = table.to("cpu", torch.float64)
        finite = table.isfinite()
        if not bool(finite.all()):
            self._low = torch.minimum(self._low, table.where(finite, torch.inf).amin(0))
            self._high = torch.maximum(self._high, table.where(finite, -torch.inf).amax(0))
            table = table.where(finite, self._shift)
            self._count += finite.sum(0)
        else:
            if not self._count.any():
                self._shift = table.mean(0)  # sums of squares around a far point lose digits
            low, high = torch.aminmax(table, dim=0)
            self._low, self._high = torch.minimum(self._low, low), torch.maximum(self._high, high)
            self._count += table.shape[0]
        moved = table - self._shift
        self._sum += moved.sum(0)
        self._squares += (moved * moved).sum(0)
        some = moved[:, : len(self._products)]
        self._products += some.T @ some

    def _add_changes(self, values: Tensor) -> None:
        """Add the squares of what changes from one sample to the next, also across batches."""
        samples = values[: max(_MOST_NUMBERS // max(values[0].numel(), 1), 1)]
        samples = samples.to("cpu", torch.float64)
        before, self._last = self._last, samples[-1:].clone()
        if len(samples) < len(values):
            self._last = None
        if before is not None and before.shape[1:] == samples.shape[1:]:
            samples = torch.cat([before, samples])
        if len(samples) > 1:
            changes = samples.diff(dim=0).reshape(-1, self._width)[:, :: self._step]
            self._changes += changes.nan_to_num(0.0, 0.0, 0.0).square().sum(0)
            self._num_changes += len(changes)

    def facts(self) -> tuple[ColumnFact, ...]:
        """Return the statistics of each column that had a finite number."""
        mean = self._sum / self._count
        std = (self._squares / self._count - mean * mean).clamp(min=0).sqrt()
        step = (self._changes / (self._num_changes or math.nan)).sqrt()
        told = torch.stack([mean + self._shift, std, self._low, self._high, step], 1).tolist()
        return tuple(
            ColumnFact(column=place, mean=m, std=0.0 if low == high else s, smallest=low,
                       largest=high, step=change)
            for place, (m, s, low, high, change), count in zip(
                self._places, told, self._count.tolist(), strict=True
            )
            if count
        )  # fmt: skip

    def correlations(self) -> tuple[float, ...]:
        """Return those of the first 24 columns: each with the first, with the second, and so on.

        A column that stands still has none, which is told as 0.
        """
        num = len(self._products)
        if num < 2:
            return ()
        count = self._count[:num].clamp(min=1)
        mean = self._sum[:num] / count
        covariance = self._products / torch.minimum(count, count[:, None]) - mean * mean[:, None]
        spread = covariance.diagonal().clamp(min=0).sqrt()
        told = covariance / (spread * spread[:, None])
        told = torch.nan_to_num(told, 0.0, 0.0, 0.0).clamp(-1, 1)
        above = torch.ones_like(told, dtype=torch.bool).triu(1)
        return tuple(told[above].tolist())
