"""Running statistics of the columns of a network's input."""

import math

import torch
from torch import Tensor

from sluice.trace.records.inputs import ColumnRecord

MAX_COLUMNS = 64
"""Maximum number of measured columns. In a wider input, evenly spaced columns are measured."""
_MAX_ELEMENTS = 2**16
"""Maximum number of elements of a batch that are read. Some rows of a larger batch are skipped."""
_MAX_CORRELATED_COLUMNS = 24
"""Number of first measured columns whose correlations are computed."""


def is_channels_first(batch: Tensor) -> bool:
    """Return whether a batch contains multi-channel images in channels-first layout.

    Images of at most 64 values do not count, because each of their values is a column.
    """
    if batch.dim() < 4 or batch[0].numel() <= MAX_COLUMNS:
        return False
    return 2 <= batch.shape[1] <= MAX_COLUMNS and batch.shape[1] < min(batch.shape[2:])


class ColumnStatistics:
    """Mean, standard deviation, extremes and changes of each column of an input.

    A change is the difference of a column between two consecutive rows. The correlations of the
    first columns are computed, too. Non-finite values are skipped. A change from or to a non-finite
    value counts as 0.

    Args:
        batch: First batch of floating-point values, (rows, ...).
        by_channel: Whether each channel of a batch, (rows, channels, ...), is a column.
    """

    def __init__(self, batch: Tensor, *, by_channel: bool = False) -> None:
        row_numel = batch[0].numel()
        self.is_flattened = not by_channel and (row_numel <= MAX_COLUMNS or batch.dim() < 3)
        """Whether each position of the flattened row is a column. Otherwise, each index of one
        dimension is a column."""
        self._column_dim = 1 if by_channel else -1
        self._width = row_numel if self.is_flattened else batch.shape[self._column_dim]
        self._column_stride = -(-self._width // MAX_COLUMNS)
        self._measured_columns = range(0, self._width, self._column_stride)
        num_columns = len(self._measured_columns)
        self._num_finite = torch.zeros(num_columns, dtype=torch.float64)
        """Number of finite values of each column."""
        self._shift = torch.zeros(num_columns, dtype=torch.float64)
        """Value near the mean of each column, which is subtracted before values are summed; 0 if
        the first batch contains non-finite values."""
        self._sum, self._sum_of_squares = self._num_finite.clone(), self._num_finite.clone()
        """Sums of the shifted values, and of their squares, of each column."""
        self._minima = torch.full((num_columns,), torch.inf, dtype=torch.float64)
        self._maxima = -self._minima
        num_correlated = min(num_columns, _MAX_CORRELATED_COLUMNS)
        self._sum_of_products = torch.zeros((num_correlated, num_correlated), dtype=torch.float64)
        """Sum of the products of the shifted values, for each pair of the first columns."""
        self._last_row: Tensor | None = None
        """Last row of the previous batch; None if this row was not read."""
        self._squared_changes, self._num_changes = self._num_finite.clone(), 0
        """Sum of the squared changes from one row to the next, and number of changes."""

    def add(self, batch: Tensor) -> None:
        """Add one batch; a batch with another width is skipped."""
        values = batch.detach()
        row_numel = values[0].numel()
        if values.dim() < 2 and self._column_dim == 1:
            return
        if (row_numel if self.is_flattened else values.shape[self._column_dim]) != self._width:
            return
        if self._column_dim == 1:
            values = values.movedim(1, -1)
        self._add_changes(values)
        table = values.reshape(-1, self._width)[:, :: self._column_stride]
        if table.numel() > _MAX_ELEMENTS:
            table = table[:: -(-table.numel() // _MAX_ELEMENTS)]
        table = table.to("cpu", torch.float64)
        is_finite = table.isfinite()
        if not bool(is_finite.all()):
            self._minima = torch.minimum(self._minima, table.where(is_finite, torch.inf).amin(0))
            self._maxima = torch.maximum(self._maxima, table.where(is_finite, -torch.inf).amax(0))
            table = table.where(is_finite, self._shift)  # adds 0 to the sums
            self._num_finite += is_finite.sum(0)
        else:
            if not self._num_finite.any():
                # The shift is close to the mean, because sums of squares around a distant value
                # would lose precision.
                self._shift = table.mean(0)
            minima, maxima = torch.aminmax(table, dim=0)
            self._minima = torch.minimum(self._minima, minima)
            self._maxima = torch.maximum(self._maxima, maxima)
            self._num_finite += table.shape[0]
        shifted = table - self._shift
        self._sum += shifted.sum(0)
        self._sum_of_squares += (shifted * shifted).sum(0)
        first_columns = shifted[:, : len(self._sum_of_products)]
        self._sum_of_products += first_columns.T @ first_columns

    def _add_changes(self, values: Tensor) -> None:
        """Add the squared changes between consecutive rows, within and across batches."""
        first_rows = values[: max(_MAX_ELEMENTS // max(values[0].numel(), 1), 1)]
        first_rows = first_rows.to("cpu", torch.float64)
        previous_row, self._last_row = self._last_row, first_rows[-1:].clone()
        if len(first_rows) < len(values):
            self._last_row = None
        if previous_row is not None and previous_row.shape[1:] == first_rows.shape[1:]:
            first_rows = torch.cat([previous_row, first_rows])
        if len(first_rows) > 1:
            changes = first_rows.diff(dim=0).reshape(-1, self._width)[:, :: self._column_stride]
            self._squared_changes += changes.nan_to_num(0.0, 0.0, 0.0).square().sum(0)
            self._num_changes += len(changes)

    def records(self) -> tuple[ColumnRecord, ...]:
        """Return the statistics of each column with a finite value."""
        shifted_mean = self._sum / self._num_finite
        variance = self._sum_of_squares / self._num_finite - shifted_mean * shifted_mean
        stds = variance.clamp(min=0).sqrt()
        rms_changes = (self._squared_changes / (self._num_changes or math.nan)).sqrt()
        means = shifted_mean + self._shift
        statistics = torch.stack([means, stds, self._minima, self._maxima, rms_changes], 1).tolist()
        return tuple(
            ColumnRecord(
                column=column,
                mean=mean,
                std=0.0 if low == high else std,
                smallest=low,
                largest=high,
                step=rms_change,
            )
            for column, (mean, std, low, high, rms_change), num_finite in zip(
                self._measured_columns, statistics, self._num_finite.tolist(), strict=True
            )
            if num_finite
        )

    def correlations(self) -> tuple[float, ...]:
        """Return the correlations of the first 24 measured columns: the upper triangle, row by row.

        Return () if there are fewer than two columns. The correlations of a constant column are 0.
        """
        num_correlated = len(self._sum_of_products)
        if num_correlated < 2:
            return ()
        counts = self._num_finite[:num_correlated].clamp(min=1)
        means = self._sum[:num_correlated] / counts
        covariance = (
            self._sum_of_products / torch.minimum(counts, counts[:, None]) - means * means[:, None]
        )
        stds = covariance.diagonal().clamp(min=0).sqrt()
        correlation = covariance / (stds * stds[:, None])
        correlation = torch.nan_to_num(correlation, 0.0, 0.0, 0.0).clamp(-1, 1)
        is_upper = torch.ones_like(correlation, dtype=torch.bool).triu(1)
        return tuple(correlation[is_upper].tolist())
