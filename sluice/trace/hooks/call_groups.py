"""Groups network calls whose inputs are summarized together.

The calls of a group have the same network, loader and mode. Gradients are enabled in all of them or
in none.
"""

import torch
from torch import Tensor

from sluice.trace.inspection.column_statistics import ColumnStatistics
from sluice.trace.inspection.token_statistics import TokenCounts
from sluice.trace.records.inputs import RowsRecord

_MAX_EXTRA_CALLS = 16
"""Maximum number of calls of a group that are inspected after its first 64. Such a later call is
inspected only if a backward pass precedes it in the same step."""
_SAMPLE_SIZE = 64
"""Maximum number of rows, and maximum number of columns, in a sample of an input."""
_MAX_COMPARED_COLUMNS = 512
"""Maximum number of columns in which two rows are compared."""
_MIN_MEDIAN_DIFFERENCES = 32
"""Minimum median of the number of columns in which two rows differ, over all pairs of unequal rows.
With a lower median, equal rows may be a coincidence."""
_MIN_NEAREST_RATIO = 0.4
"""Minimum ratio of the smallest number of differing columns to the median number, over all pairs of
unequal rows. With a lower ratio, equal rows may be a coincidence."""
_MIN_FLOAT16_COLUMNS = 8
"""Minimum number of columns of a 16-bit input, for equal rows to count as copies. With fewer
columns, equal rows may be a coincidence, even if the values rarely repeat."""
_MIN_UNIQUE_SHARE = 0.5
"""Share of distinct values in a sample above which values count as rarely repeated."""

_MIN_CORRELATED_ROWS = 8
"""Minimum number of rows for a comparison of two batches. The columns of smaller batches may
correlate by chance."""
_MIN_CORRELATION = 0.8
"""Mean correlation of the columns of two consecutive calls above which the second call refines the
input of the first. If a diffusion model generates in few calls, each call changes the input more.
With a cosine schedule and 10 calls, 5 calls correlate above 0.8 with the previous one, just enough
for ``is_refining``. Only 3 calls correlate above 0.9."""


class CallGroup:
    """The calls of one network in one mode, on the batches of one loader.

    Gradients are enabled in all of the calls or in none.
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
        """Detects iterative sampling; only for calls without gradients and without a loader."""
        self.num_calls = self.num_rows = 0
        """Number of inspected calls, and number of their rows."""
        self.first_step = self.last_step = 0
        """Number of optimizer steps before the first inspected call, and before the last one."""
        self.extra_calls_left = _MAX_EXTRA_CALLS
        """Number of calls that may still be inspected after the first ``NUM_FIRST_CALLS``."""
        self.is_generated = False
        """Whether a network computed the input of a call."""
        self.matches_model_output = False
        """Whether another network returns rows with the shape of the input rows."""
        self.has_distinctive_rows = False
        """Whether equal input rows must be copies; see the function ``has_distinctive_rows``."""
        self.shape: tuple[int, ...] = ()
        """Shape of the input in the last inspected call."""
        self.dtype = ""
        """Dtype of the input in the first inspected call, such as 'float32'."""
        self.columns: ColumnStatistics | None = None
        """Statistics of float inputs per column."""
        self.channels: ColumnStatistics | None = None
        """Statistics of images per channel; None for other inputs."""
        self.tokens: TokenCounts | None = None
        """Token counts of the first tensor argument; None if it is not tokens."""
        self.other_tokens: dict[int, TokenCounts] = {}
        """Token counts of the other tensor arguments, by position."""
        self.awaits_backward = self.is_grad_enabled and not self.is_learning
        """Whether a backward pass would show that the calls of this group are training calls."""
        self.pending_rows: list[RowsRecord] = []
        """Row records of calls with gradients enabled in evaluation mode. They are written after a
        backward pass or at the end of the trace."""


class RefinementDetector:
    """Detects calls that refine the input of the previous call, as in iterative sampling.

    A diffusion model starts from noise and refines its own outputs: from one call to the next every
    row changes a little, and no optimizer step happens between the calls.
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
        """Compare a sample of the input with the previous call."""
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
        """Whether at least half of the calls with a new input refine the previous one."""
        return 0 < self._num_new_inputs <= 2 * self._num_refined_inputs


def has_distinctive_rows(tensor: Tensor) -> bool:
    """Return whether equal rows of a batch must be copies of one row.

    This is so if the values of the batch rarely repeat, or if unequal rows differ in many columns.
    """
    if not tensor.is_floating_point() or tensor.dim() < 2 or tensor.layout != torch.strided:
        return False
    sample = tensor.detach().reshape(tensor.shape[0], -1)[:_SAMPLE_SIZE, :_SAMPLE_SIZE]
    # Of thousands of rows with a few 16-bit values each, some are equal by chance.
    min_columns = 2 if tensor.element_size() > 2 else _MIN_FLOAT16_COLUMNS
    min_unique = _MIN_UNIQUE_SHARE * sample.numel()
    if sample.shape[1] >= min_columns and sample.unique().numel() > min_unique:
        return True
    wide_sample = tensor.detach().reshape(tensor.shape[0], -1)[
        :_SAMPLE_SIZE, :_MAX_COMPARED_COLUMNS
    ]
    differences = (wide_sample[:, None] != wide_sample[None]).sum(-1).flatten()
    differences = differences[differences > 0]
    if not differences.numel():
        return False
    median = float(differences.median())
    are_distant = median >= _MIN_MEDIAN_DIFFERENCES
    return are_distant and float(differences.min()) >= _MIN_NEAREST_RATIO * median


def _is_correlated(one: Tensor, other: Tensor) -> bool:
    """Return whether the columns of two batches are correlated over the rows, on average."""
    if one.shape[0] < _MIN_CORRELATED_ROWS:
        return False
    one, other = (t - t.mean(0) for t in (one, other))
    norms = (one.square().sum(0) * other.square().sum(0)).sqrt()
    is_varying = norms > 0
    products = (one * other).sum(0)
    return bool((products[is_varying] / norms[is_varying]).mean() > _MIN_CORRELATION)
