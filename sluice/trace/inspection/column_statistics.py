"""Running statistics of the columns of a network's input."""

import math

import torch
from torch import Tensor

from sluice.trace.records.inputs import ColumnRecord

MAX_COLUMNS = 64
"""Maximum number of measured columns. Of a wider input, evenly spaced columns are measured."""
_MAX_ELEMENTS = 2**16
"""Maximum number of elements of a batch that are read. Of a larger batch, rows are skipped."""
_MAX_CORRELATED = 24
"""Maximum number of measured columns whose correlations are computed. If there are more, the first
ones are used."""


def is_channels_first(batch: Tensor) -> bool:
    """Return whether a batch is multi-channel images in channels-first layout.

    Images of at most 64 values do not count: their columns are single values.
    """
    if batch.dim() < 4 or batch[0].numel() <= MAX_COLUMNS:
        return False
    return 2 <= batch.shape[1] <= MAX_COLUMNS and batch.shape[1] < min(batch.shape[2:])


class ColumnStatistics:
    """Mean, standard deviation, extremes and changes of each column of an input.

    Changes are those from one row to the next. Also computes the correlations of the first
    columns. Non-finite values are skipped; changes from or to them count as 0.

    Args:
        batch: First batch of floating-point values, (rows, ...); later batches with another width
            are skipped.
        by_channel: Whether a column is a channel, (rows, channels, ...).
    """

    def __init__(self, batch: Tensor, *, by_channel: bool = False) -> None:
        row_numel = batch[0].numel()
        self.is_flattened = not by_channel and (row_numel <= MAX_COLUMNS or batch.dim() < 3)
        """Whether columns are positions in the flattened row; otherwise they are indices of one
        dimension."""
        self._axis = 1 if by_channel else -1
        self._width = row_numel if self.is_flattened else batch.shape[self._axis]
        self._stride = -(-self._width // MAX_COLUMNS)
        self._columns = range(0, self._width, self._stride)
        num_columns = len(self._columns)
        self._num_finite = torch.zeros(num_columns, dtype=torch.float64)
        """Number of finite values of each column."""
        self._shift = torch.zeros(num_columns, dtype=torch.float64)
        """Value near the mean of each column. It is subtracted before values are summed."""
        self._sum, self._sum_of_squares = self._num_finite.clone(), self._num_finite.clone()
        self._low = torch.full((num_columns,), torch.inf, dtype=torch.float64)
        self._high = -self._low
        num_correlated = min(num_columns, _MAX_CORRELATED)
        self._sum_of_products = torch.zeros((num_correlated, num_correlated), dtype=torch.float64)
        """Sum of the products of each two of the first columns."""
        self._last_sample: Tensor | None = None
        """Last sample of the previous batch; None if it was not read."""
        self._squared_changes, self._num_changes = self._num_finite.clone(), 0
        """Sum of the squared changes from one row to the next, and number of changes."""

    def add(self, batch: Tensor) -> None:
        """Add one batch; a batch with another width is skipped."""
        values = batch.detach()
        row_numel = values[0].numel()
        if values.dim() < 2 and self._axis == 1:
            return
        if (row_numel if self.is_flattened else values.shape[self._axis]) != self._width:
            return
        if self._axis == 1:
            values = values.movedim(1, -1)
        self._add_changes(values)
        table = values.reshape(-1, self._width)[:, :: self._stride]
        if table.numel() > _MAX_ELEMENTS:
            table = table[:: -(-table.numel() // _MAX_ELEMENTS)]
        table = table.to("cpu", torch.float64)
        is_finite = table.isfinite()
        if not bool(is_finite.all()):
            self._low = torch.minimum(self._low, table.where(is_finite, torch.inf).amin(0))
            self._high = torch.maximum(self._high, table.where(is_finite, -torch.inf).amax(0))
            table = table.where(is_finite, self._shift)  # adds 0 to the sums
            self._num_finite += is_finite.sum(0)
        else:
            if not self._num_finite.any():
                # Sums of squares around a value far from the mean would lose precision.
                self._shift = table.mean(0)
            low, high = torch.aminmax(table, dim=0)
            self._low, self._high = torch.minimum(self._low, low), torch.maximum(self._high, high)
            self._num_finite += table.shape[0]
        shifted = table - self._shift
        self._sum += shifted.sum(0)
        self._sum_of_squares += (shifted * shifted).sum(0)
        first_columns = shifted[:, : len(self._sum_of_products)]
        self._sum_of_products += first_columns.T @ first_columns

    def _add_changes(self, values: Tensor) -> None:
        """Add the squared changes from one row to the next, also across batches."""
        samples = values[: max(_MAX_ELEMENTS // max(values[0].numel(), 1), 1)]
        samples = samples.to("cpu", torch.float64)
        previous, self._last_sample = self._last_sample, samples[-1:].clone()
        if len(samples) < len(values):
            self._last_sample = None
        if previous is not None and previous.shape[1:] == samples.shape[1:]:
            samples = torch.cat([previous, samples])
        if len(samples) > 1:
            changes = samples.diff(dim=0).reshape(-1, self._width)[:, :: self._stride]
            self._squared_changes += changes.nan_to_num(0.0, 0.0, 0.0).square().sum(0)
            self._num_changes += len(changes)

    def records(self) -> tuple[ColumnRecord, ...]:
        """Return the statistics of each column with a finite value."""
        shifted_mean = self._sum / self._num_finite
        variance = self._sum_of_squares / self._num_finite - shifted_mean * shifted_mean
        stds = variance.clamp(min=0).sqrt()
        changes = (self._squared_changes / (self._num_changes or math.nan)).sqrt()
        means = shifted_mean + self._shift
        rows = torch.stack([means, stds, self._low, self._high, changes], 1).tolist()
        return tuple(
            ColumnRecord(
                column=column,
                mean=mean,
                std=0.0 if low == high else std,
                smallest=low,
                largest=high,
                step=change,
            )
            for column, (mean, std, low, high, change), num_finite in zip(
                self._columns, rows, self._num_finite.tolist(), strict=True
            )
            if num_finite
        )

    def correlations(self) -> tuple[float, ...]:
        """Return the correlations of the first 24 measured columns: the upper triangle, row by row.

        Empty with fewer than two columns. The correlations of a constant column are 0.
        """
        num_correlated = len(self._sum_of_products)
        if num_correlated < 2:
            return ()
        count = self._num_finite[:num_correlated].clamp(min=1)
        mean = self._sum[:num_correlated] / count
        covariance = (
            self._sum_of_products / torch.minimum(count, count[:, None]) - mean * mean[:, None]
        )
        std = covariance.diagonal().clamp(min=0).sqrt()
        correlation = covariance / (std * std[:, None])
        correlation = torch.nan_to_num(correlation, 0.0, 0.0, 0.0).clamp(-1, 1)
        upper = torch.ones_like(correlation, dtype=torch.bool).triu(1)
        return tuple(correlation[upper].tolist())
