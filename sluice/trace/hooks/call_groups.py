"""State of the calls of one network in one mode, on the batches of one loader."""

import torch
from torch import Tensor

from sluice.trace.inspection.column_statistics import ColumnStatistics
from sluice.trace.inspection.token_statistics import TokenCounts
from sluice.trace.records.inputs import RowsRecord

_MAX_EXTRA_CALLS = 16
"""Maximum number of inspected calls after the first 64, each after a backward pass of its step."""
_SAMPLE_SIZE = 64
"""Maximum number of rows, and of columns, in a sample of an input."""
_WIDE_SAMPLE_SIZE, _MIN_MEDIAN_DIFFERENCES, _MIN_NEAREST_RATIO = 512, 32, 0.4
"""Number of columns in which pairs of rows are compared; minimum median number of columns in which
a pair differs; minimum ratio of this number for the closest pair to the median."""
_MIN_FLOAT16_COLUMNS = 8
"""Minimum number of columns for 16-bit values to count as continuous."""
_MIN_UNIQUE_SHARE = 0.5
"""Minimum share of distinct values in a sample of continuous values."""

_MIN_CORRELATED_ROWS = 8
"""With fewer rows, the rows of any two batches may correlate."""
_MIN_CORRELATION = 0.8
"""Minimum mean correlation of columns with those of the previous call. Samplers with few calls make
the largest steps: of 10 calls of a diffusion model with a cosine schedule, 5 exceed this value and
3 exceed 0.9."""


class CallGroup:
    """The calls of one network in one mode, on the batches of one loader."""

    def __init__(
        self, network: int, loader: int, *, is_grad_enabled: bool, is_training: bool
    ) -> None:
        self.network, self.loader = network, loader
        self.is_learning = is_grad_enabled and is_training
        """Whether the calls are training calls."""
        self.is_grad_enabled = is_grad_enabled
        """Whether gradients are enabled during the calls."""
        self.sampling_detector: IterativeSamplingDetector | None = None
        """Detects iterative sampling; only for calls without gradients and without a loader."""
        self.num_calls = self.num_rows = self.first_step = self.last_step = 0
        """Numbers of inspected calls and rows; optimizer steps before the first and last call."""
        self.extra_calls_left = _MAX_EXTRA_CALLS
        self.is_generated = False
        """Whether a network computed an input."""
        self.matches_model_output = False
        """Whether another network returns rows with the shape of the input rows."""
        self.is_continuous = False
        """Whether equal input rows must be copies."""
        self.shape: tuple[int, ...] = ()
        self.dtype = ""
        self.columns: ColumnStatistics | None = None
        self.channels: ColumnStatistics | None = None
        self.tokens: TokenCounts | None = None
        self.other_tokens: dict[int, TokenCounts] = {}
        """Token counts of the other tensor arguments, by position."""
        self.awaits_backward = self.is_grad_enabled and not self.is_learning
        """Whether a backward pass would show that the calls of this group are training calls."""
        self.pending_rows: list[RowsRecord] = []
        """Row records of calls in evaluation mode, until a backward pass or the end of a trace."""


class IterativeSamplingDetector:
    """Counts calls whose input differs little from the previous one, as in iterative sampling.

    A diffusion model starts from noise and refines its own outputs: from one call to the next every
    row changes a little, and no optimizer step happens between the calls.
    """

    def __init__(self) -> None:
        self._previous: Tensor | None = None
        self._step = self._num_new_inputs = self._num_refined_inputs = 0

    def add(self, tensor: Tensor, step: int) -> None:
        """Compare a sample of the input with the previous call."""
        sample = tensor.detach()[:_SAMPLE_SIZE]
        sample = sample.reshape(sample.shape[0], -1)[:, :_SAMPLE_SIZE]
        sample = sample.to("cpu", torch.float64, copy=True)
        previous, self._previous = self._previous, sample
        is_same_shape = previous is not None and previous.shape == sample.shape
        if previous is not None and is_same_shape and previous.equal(sample):
            return
        self._num_new_inputs += 1
        if previous is not None and is_same_shape and step == self._step:
            self._num_refined_inputs += _is_correlated(previous, sample)
        self._step = step

    @property
    def is_sampling(self) -> bool:
        """Whether at least half of the calls with a new input refine the previous one."""
        return 0 < self._num_new_inputs <= 2 * self._num_refined_inputs


def is_continuous(tensor: Tensor) -> bool:
    """Return whether equal rows must be copies: values rarely repeat, or rows differ widely."""
    if not tensor.is_floating_point() or tensor.dim() < 2 or tensor.layout != torch.strided:
        return False
    sample = tensor.detach().reshape(tensor.shape[0], -1)[:_SAMPLE_SIZE, :_SAMPLE_SIZE]
    # Of thousands of rows with a few 16-bit values each, some are equal by chance.
    min_columns = 2 if tensor.element_size() > 2 else _MIN_FLOAT16_COLUMNS
    min_unique = _MIN_UNIQUE_SHARE * sample.numel()
    if sample.shape[1] >= min_columns and sample.unique().numel() > min_unique:
        return True
    wide = tensor.detach().reshape(tensor.shape[0], -1)[:_SAMPLE_SIZE, :_WIDE_SAMPLE_SIZE]
    differences = (wide[:, None] != wide[None]).sum(-1).flatten()
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
