"""Groups network calls whose inputs are summarized together."""

import torch
from torch import Tensor

from sluice.trace.inspection.column_statistics import ColumnStatistics
from sluice.trace.inspection.plain_tensors import is_8bit_float
from sluice.trace.inspection.token_statistics import TokenCounts
from sluice.trace.records.inputs import RowsRecord

_MAX_EXTRA_CALLS = 16
"""Maximum number of calls of a group that are inspected after its first 64 calls. A call after the
first 64 is inspected only if a backward pass precedes it in the same step."""
_SAMPLE_SIZE = 64
"""Maximum number of rows, and maximum number of columns, in a sample of an input."""
_MAX_COMPARED_COLUMNS = 512
"""Maximum number of columns in which two rows are compared."""
_MIN_MEDIAN_DIFFERENCES = 32
"""For each pair of unequal rows, the columns in which the rows differ are counted. If the median
count is lower than this number, equal rows may be a coincidence."""
_MIN_NEAREST_RATIO = 0.4
"""If the smallest count of differing columns, divided by the median count, is lower than this
ratio, equal rows may be a coincidence."""
_MIN_FLOAT16_COLUMNS = 8
"""If a 16-bit input has fewer columns than this number, equal rows may be a coincidence, even if
the values rarely repeat."""
_MIN_DISTINCT_FRACTION = 0.5
"""Values of an input rarely repeat if the number of distinct values in a sample, divided by the
number of all its values, is above this fraction."""

_MIN_CORRELATED_ROWS = 8
"""Minimum number of rows for a comparison of two batches. The columns of smaller batches may
correlate by chance."""
_MIN_CORRELATION = 0.8
"""A call refines the input of the previous call if the two inputs have a correlation above this
value, averaged over their columns. If a diffusion model generates in few calls, each call changes
the input more. With a cosine schedule and 10 calls, 5 correlations are above 0.8, just enough for
``is_refining``. Only 3 correlations are above 0.9."""


class CallGroup:
    """The calls of one network on the batches of one loader.

    The network is in training mode in all of the calls or in none, and gradients are enabled in all
    of the calls or in none.
    """

    def __init__(
        self, network: int, loader: int, *, is_grad_enabled: bool, is_training: bool
    ) -> None:
        self.network, self.loader = network, loader
        self.is_learning = is_grad_enabled and is_training
        """Whether the calls are training calls: with gradients enabled, and in training mode or
        followed by a backward pass."""
        self.is_grad_enabled = is_grad_enabled
        """Whether gradients are enabled during the calls."""
        self.refinement_detector: RefinementDetector | None = None
        """Detects generation in several calls; None with gradients enabled or with a loader."""
        self.num_calls = self.num_rows = 0
        """Number of inspected calls, and number of their rows."""
        self.first_step = self.last_step = 0
        """Number of optimizer steps before the first inspected call, and before the last one."""
        self.num_extra_calls_left = _MAX_EXTRA_CALLS
        """Number of calls after the first 64 that may still be inspected."""
        self.is_generated = False
        """Whether a network computed the input of any inspected call."""
        self.matches_model_output = False
        """Whether another network had returned rows with the shape of the input rows before the
        first inspected call."""
        self.has_distinctive_rows = False
        """Whether equal rows of the first inspected input must be copies; see the function
        ``has_distinctive_rows``."""
        self.shape: tuple[int, ...] = ()
        """Shape of the input in the last inspected call."""
        self.dtype = ""
        """Dtype of the input in the first inspected call, such as 'float32'."""
        self.column_statistics: ColumnStatistics | None = None
        """Statistics of the input per column; None unless the input is a float tensor."""
        self.channel_statistics: ColumnStatistics | None = None
        """Statistics of the input per channel; None unless the input is an image."""
        self.token_counts: TokenCounts | None = None
        """Token counts of the first tensor argument; None if it does not contain tokens."""
        self.other_token_counts: dict[int, TokenCounts] = {}
        """Token counts of the other tensor arguments, by position."""
        self.awaits_backward = self.is_grad_enabled and not self.is_learning
        """Whether it is unknown if the calls are training calls, because no backward pass has
        followed yet."""
        self.pending_row_records: list[RowsRecord] = []
        """Row records that are written after a backward pass or at the end of the trace. Empty
        unless the calls run in evaluation mode with gradients enabled."""


class RefinementDetector:
    """Detects calls that refine the input of the previous call, such as those of a diffusion model.

    A diffusion model generates in several calls: it starts from noise and refines its own outputs.
    Each call changes every row a little, and no optimizer step happens between the calls.
    """

    def __init__(self) -> None:
        self._previous_sample: Tensor | None = None
        """Sample of the input of the previous call."""
        self._num_new_inputs = 0
        """Number of calls whose input is new: it differs from the input of the previous call."""
        self._num_refined_inputs = 0
        """Number of calls with a new input that refines the previous input."""
        self._last_new_input_step = 0
        """Number of optimizer steps before the last call with a new input."""

    def add(self, tensor: Tensor, step: int) -> None:
        """Compare the input of a call, after ``step`` optimizer steps, with the previous input."""
        sample = tensor.detach()[:_SAMPLE_SIZE]
        sample = sample.reshape(sample.shape[0], -1)[:, :_SAMPLE_SIZE]
        sample = sample.to("cpu", torch.float64, copy=True)
        previous_sample, self._previous_sample = self._previous_sample, sample
        is_same_shape = previous_sample is not None and previous_sample.shape == sample.shape
        if previous_sample is not None and is_same_shape and previous_sample.equal(sample):
            return
        self._num_new_inputs += 1
        if previous_sample is not None and is_same_shape and step == self._last_new_input_step:
            self._num_refined_inputs += _is_correlated(previous_sample, sample)
        self._last_new_input_step = step

    @property
    def is_refining(self) -> bool:
        """Whether at least half of the calls with a new input refine the previous input."""
        return 0 < self._num_new_inputs <= 2 * self._num_refined_inputs


def has_distinctive_rows(tensor: Tensor) -> bool:
    """Return whether equal rows of a batch must be copies of one row.

    Equal rows must be copies if the values of the batch rarely repeat, or if unequal rows differ in
    many columns. Only batches of floats of at least 16 bits, with at least two dimensions, are
    checked: values of 8-bit floats repeat often.
    """
    if not tensor.is_floating_point() or tensor.dim() < 2 or tensor.layout != torch.strided:
        return False
    if is_8bit_float(tensor):
        return False
    sample = tensor.detach().reshape(tensor.shape[0], -1)[:_SAMPLE_SIZE, :_SAMPLE_SIZE]
    # A 16-bit input needs more columns, because some of thousands of rows with few 16-bit values
    # are equal by chance.
    min_columns = 2 if tensor.element_size() > 2 else _MIN_FLOAT16_COLUMNS
    min_distinct_values = _MIN_DISTINCT_FRACTION * sample.numel()
    if sample.shape[1] >= min_columns and sample.unique().numel() > min_distinct_values:
        return True
    wide_sample = tensor.detach().reshape(tensor.shape[0], -1)[
        :_SAMPLE_SIZE, :_MAX_COMPARED_COLUMNS
    ]
    differing_columns = (wide_sample[:, None] != wide_sample[None]).sum(-1).flatten()
    differing_columns = differing_columns[differing_columns > 0]
    if not differing_columns.numel():
        return False
    median_count = float(differing_columns.median())
    are_distant = median_count >= _MIN_MEDIAN_DIFFERENCES
    return are_distant and float(differing_columns.min()) >= _MIN_NEAREST_RATIO * median_count


def _is_correlated(first: Tensor, second: Tensor) -> bool:
    """Return whether the mean correlation of the columns of two batches is high.

    Columns that are constant in a batch are ignored.
    """
    if first.shape[0] < _MIN_CORRELATED_ROWS:
        return False
    first, second = (batch - batch.mean(0) for batch in (first, second))
    norms = (first.square().sum(0) * second.square().sum(0)).sqrt()
    is_varying = norms > 0
    covariances = (first * second).sum(0)
    return bool((covariances[is_varying] / norms[is_varying]).mean() > _MIN_CORRELATION)
