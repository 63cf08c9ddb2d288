"""Permutation test of whether the targets depend on the features, before any training.

Suffixes name the axes of an array: N = examples, P = values of an input, M = columns of a feature
map, O = columns of the targets, K = orders of the targets (the real order, then permutations).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sluice.base.seeding import derive_seed
from sluice.config.poc_settings import PocSettings
from sluice.data.rows.protocol import flat_input, input_parts
from sluice.failfast.learning.example_sampling import sample_evenly
from sluice.failfast.learning.instantiation import too_few_examples
from sluice.findings.check_outcome import CheckOutcome
from sluice.workloads.examples import Examples

Floats = NDArray[np.float64]

_MIN_ROWS = 50
"""Minimum number of complete examples for the test; with fewer the outcome is "insufficient"."""

_MIN_CONCLUSIVE_ROWS = 200
"""Minimum number of examples for a failure. With fewer examples, the test may miss a signal that
explains a few per cent of the variance, so the check only warns."""

_MIN_ROWS_PER_CLASS = 10
"""Minimum mean number of examples per class for a failure. With fewer, the check only warns."""

_MIN_OTHER_ROWS = 30
"""Minimum number of examples outside the most frequent class for a failure. With fewer, the check
only warns."""

_MAX_INPUT_VALUES = 1024
"""Maximum number of values of one input for a failure. In larger inputs, such as large images, the
feature maps of this check may miss a signal, so the check only warns."""

_MAX_TOKEN = 2**31
"""Floats count as integers, such as token ids, only below this absolute value."""

_MAX_VALUES = 100_000_000
"""Maximum number of input values of all tested examples together. Larger inputs are tested on fewer
examples, but on at least ``_MIN_CONCLUSIVE_ROWS``."""

_MAX_COLUMNS = 512
"""Maximum number of columns of a linear map, and number of columns of each map of tokens."""

_NUM_RANDOM_COLUMNS = 256
"""Number of random Fourier features of a feature map."""

_MAX_PRODUCT_INPUTS = 24
"""Maximum number of values of the last row for which products of two values are features."""

_MAX_TARGETS = 4
"""Maximum number of target columns. More columns are replaced by this number of random linear
combinations."""

_RIDGES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""Ridge penalties, relative to the mean eigenvalue of the map's Gram matrix."""

_CLIP_DEVIATIONS = 5.0
"""Absolute value at which standardised inputs are clipped [standard deviations]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalTest:
    """Share of the variance of the targets that generic regressions explain, and its p-value."""

    r2: float
    """Share of the target's variance that the best regression explains, by generalised cross-
    validation."""
    critical_r2: float
    """Share that is exceeded with probability ``signal_alpha`` if the targets are shuffled."""
    p_value: float
    """Probability that the best regression explains at least ``r2`` of shuffled targets."""


def check_signal(
    train: Examples, settings: PocSettings, *, expects_signal: bool, seed: int
) -> CheckOutcome:
    """Test whether the targets depend on the features, by a permutation test.

    Generic ridge regressions predict one-hot classes, or the ranks of numeric targets and the
    distance of the ranks from the middle. The inputs of the regressions are

    - the values and random Fourier features of the window and of its last row,
    - products of two values of the last row,
    - for integer inputs, the count of each value and the value at each position.

    The best regression must explain more of the targets than of shuffled targets. All regressions
    are also fitted to every shuffle, so the false positive rate is at most ``signal_alpha``.

    Without a signal, the check fails only if these regressions would probably have detected a real
    signal: many rows, many rows per class, and inputs that are few and numeric. Otherwise the check
    warns. It also only warns if no signal is expected.

    Args:
        train: Train examples of a fold.
        settings: Number of rows and shuffles, significance level.
        expects_signal: Whether the workload expects a signal.
        seed: Seed of random features and shuffles.

    Cost:
        About half a second for 2,000 examples of 198 values.

    Assumes:
        Rows are exchangeable. Neighbouring rows of a time series are not exchangeable. They can
        cause a false positive, but not a false negative.

    Source:
        Phipson and Smyth (2010), "Permutation P-values Should Never Be Zero", on p-values.
    """
    rows = min(
        settings.signal_rows,
        max(_MIN_CONCLUSIVE_ROWS, _MAX_VALUES // max(1, _num_values(sample_evenly(train, 1)))),
    )
    sample = _drop_non_finite(sample_evenly(train, rows))
    if len(sample) < _MIN_ROWS:
        return too_few_examples(len(sample), _MIN_ROWS)
    if bool((sample.targets == sample.targets[:1]).all()):
        return CheckOutcome(
            outcome="insufficient",
            summary=f"No signal can be tested: all targets of {len(sample):,} examples are equal.",
            cause="The target column has only one value.",
            fix="Check how targets are computed and joined to rows.",
        )
    signal = find_signal(
        sample,
        num_permutations=settings.signal_permutations,
        alpha=settings.signal_alpha,
        seed=derive_seed(seed, "poc_signal"),
    )
    return _signal_outcome(signal, sample, settings, expects_signal=expects_signal)


def find_signal(
    examples: Examples, *, num_permutations: int, alpha: float, seed: int
) -> SignalTest:
    """Return the share of the targets' variance that generic regressions explain, and its p-value.

    Args:
        examples: Complete examples, with inputs and targets of any shape.
        num_permutations: Number of shuffles of the targets.
        alpha: Share of the shuffles whose explained variance exceeds ``critical_r2``.
        seed: Seed of random features and shuffles.
    """
    rng = np.random.default_rng(seed)
    order_KN = np.stack(
        [
            np.arange(len(examples)),
            *(rng.permuted(np.arange(len(examples))) for _ in range(num_permutations)),
        ]
    )
    targets = _regression_targets(examples.targets, rng)
    best_K = np.full(len(order_KN), -np.inf)
    for map_NM in _feature_maps(_input_tensor(examples), rng):
        value_M, basis_NM = _eigenbasis(map_NM)
        for target_NO in targets:
            best_K = np.maximum(best_K, _explained_variance(value_M, basis_NM, target_NO, order_KN))
    real_r2, shuffled_K = float(best_K[0]), best_K[1:]
    return SignalTest(
        r2=real_r2,
        critical_r2=float(np.quantile(shuffled_K, 1 - alpha)),
        p_value=float((1 + (shuffled_K >= real_r2).sum()) / (1 + len(shuffled_K))),
    )


def _input_tensor(examples: Examples) -> Tensor:
    """Return the inputs as one tensor; the tensors of a dict are concatenated (N, P)."""
    x = examples.inputs
    return x if isinstance(x, Tensor) else flat_input(x)


def _num_values(examples: Examples) -> int:
    """Return the number of values of one input."""
    return _input_tensor(examples)[0].numel()


def _eigenbasis(map_NM: Floats) -> tuple[Floats, Floats]:
    """Return the nonzero eigenvalues (M,) of a map's Gram matrix, and its left singular vectors."""
    num_rows, num_columns = map_NM.shape
    # The Gram matrices of rows and of columns have equal nonzero eigenvalues. The smaller matrix is
    # decomposed, because the time is cubic in its size.
    has_few_rows = num_rows < num_columns
    value_M, vector_MM = np.linalg.eigh(map_NM @ map_NM.T if has_few_rows else map_NM.T @ map_NM)
    is_kept = value_M > 1e-9 * value_M[-1]
    value_M, vector_MM = value_M[is_kept], vector_MM[:, is_kept]
    return value_M, vector_MM if has_few_rows else map_NM @ (vector_MM / np.sqrt(value_M))


def _explained_variance(
    value_M: Floats, basis_NM: Floats, target_NO: Floats, order_KN: NDArray[np.int64]
) -> Floats:
    """Return R2 (K,) by generalised cross-validation, with the best ridge penalty of each order.

    Constant inputs have no eigenvalues, and explain nothing.
    """
    if len(value_M) == 0:
        return np.zeros(len(order_KN))
    num_rows, num_targets = target_NO.shape
    # Concatenate the permuted targets, so that one matrix product computes all orders.
    permuted_targets = target_NO[order_KN].transpose(1, 0, 2).reshape(num_rows, -1)
    energy_MK = (basis_NM.T @ permuted_targets) ** 2
    energy_MK = energy_MK.reshape(len(value_M), -1, num_targets).sum(axis=2)
    total = float((target_NO**2).sum())
    best_K = np.full(len(order_KN), -np.inf)
    for ridge in _RIDGES:
        shrinkage_M = value_M / (value_M + ridge * value_M.mean())
        residual_K = total - (2 * shrinkage_M - shrinkage_M**2) @ energy_MK
        # Residual degrees of freedom, as a share of the rows; the mean uses one degree of freedom.
        dof_share = 1 - (1 + shrinkage_M.sum()) / num_rows
        if dof_share > 0.05:
            best_K = np.maximum(best_K, 1 - residual_K / (total * dof_share**2))
    return best_K


def _feature_maps(x: Tensor, rng: np.random.Generator) -> Iterator[Floats]:
    """Yield centred feature maps (N, M) of the inputs."""
    if x[0].numel() <= _MAX_INPUT_VALUES and _is_integer_valued(x):
        # Categories, tokens, counts or pixels: used both as categories and as numbers.
        yield from _token_maps(x.cpu().numpy().reshape(len(x), -1).astype(np.int64))
    whole_NP = _standardised(x)
    yield _reduce_inputs(whole_NP, rng)
    yield _fourier(whole_NP, rng)
    last_NP = _standardised(x[:, -1]) if x.ndim == 3 and x.shape[1] > 1 else whole_NP
    if last_NP is not whole_NP:
        yield _fourier(last_NP, rng)
    if last_NP.shape[1] <= _MAX_PRODUCT_INPUTS:
        left, right = np.triu_indices(last_NP.shape[1])
        yield _centred(np.hstack([last_NP, last_NP[:, left] * last_NP[:, right]]))


def _is_integer_valued(x: Tensor) -> bool:
    if not x.is_floating_point():
        return True
    return bool(((x == x.trunc()) & (x.abs() < _MAX_TOKEN)).all())


def _token_maps(token_NP: NDArray[np.int64]) -> Iterator[Floats]:
    """Yield a feature map of the count of each token, and a map of the token at each position.

    Both maps are hashed to a fixed number of columns.
    """
    row_N = np.arange(len(token_NP))[:, None]
    position_P = np.arange(token_NP.shape[1])
    # The products with large odd numbers distribute similar tokens and positions over the columns.
    for code_NP in (token_NP, token_NP * 1_000_003 + position_P * 7_919):
        cell_NP = row_N * _MAX_COLUMNS + code_NP % (_MAX_COLUMNS - 1)
        count = np.bincount(cell_NP.ravel(), minlength=len(token_NP) * _MAX_COLUMNS)
        yield _centred(count.reshape(len(token_NP), -1).astype(np.float64))


def _fourier(input_NP: Floats, rng: np.random.Generator) -> Floats:
    """Return random Fourier features of a Gaussian kernel with the median distance as width."""
    sample = input_NP[np.linspace(0, len(input_NP) - 1, min(len(input_NP), 200)).astype(np.int64)]
    squared = (sample**2).sum(axis=1)
    distance = np.sqrt(np.maximum(squared[:, None] + squared - 2 * sample @ sample.T, 0.0))
    width = float(np.median(distance[np.triu_indices(len(sample), 1)])) or 1.0
    weight_PM = rng.normal(size=(input_NP.shape[1], _NUM_RANDOM_COLUMNS)) / width
    phase_M = rng.uniform(0, 2 * math.pi, _NUM_RANDOM_COLUMNS)
    return _centred(np.cos(input_NP @ weight_PM + phase_M))


def _reduce_inputs(input_NP: Floats, rng: np.random.Generator) -> Floats:
    """Return the centred inputs; if there are many, sums of groups of inputs with random signs."""
    num_inputs = input_NP.shape[1]
    if num_inputs <= _MAX_COLUMNS:
        return _centred(input_NP)
    sign_P = rng.choice([-1.0, 1.0], num_inputs)
    column_P = rng.integers(0, _MAX_COLUMNS, (num_inputs,))
    order_P = np.argsort(column_P, kind="stable")
    starts = np.flatnonzero(np.diff(column_P[order_P], prepend=-1) > 0)
    return _centred(np.add.reduceat((input_NP * sign_P)[:, order_P], starts, axis=1))


def _standardised(x: Tensor) -> Floats:
    value_NP = x.detach().cpu().double().numpy().reshape(len(x), -1)
    deviation_P = value_NP.std(axis=0)
    value_NP = _centred(value_NP) / np.where(deviation_P > 0, deviation_P, 1.0)
    # Clip the values, so that a few outliers do not dominate.
    return np.asarray(value_NP.clip(-_CLIP_DEVIATIONS, _CLIP_DEVIATIONS))


def _centred(value_NP: Floats) -> Floats:
    return np.asarray(value_NP - value_NP.mean(axis=0))


def _regression_targets(y: Tensor, rng: np.random.Generator) -> list[Floats]:
    """Return one-hot classes, or the ranks of the targets and the distance from the middle rank."""
    if not y.is_floating_point():
        flat_NP = y.cpu().numpy().reshape(len(y), -1)
        classes, code_N = np.unique(flat_NP[:, 0], return_inverse=True)
        if flat_NP.shape[1] == 1 and len(classes) <= len(y) // 2:
            return [_reduce_targets(np.eye(len(classes))[code_N], rng)]
    value_NO = y.detach().cpu().double().numpy().reshape(len(y), -1)
    rank_NO = _reduce_targets(_ranks(value_NO), rng)
    extreme_NO = _ranks(np.abs(rank_NO))
    return [rank_NO, extreme_NO] if (extreme_NO.std(axis=0) > 0).any() else [rank_NO]


def _reduce_targets(target_NO: Floats, rng: np.random.Generator) -> Floats:
    """Return standardised targets; if there are many, a few random linear combinations of them."""
    target_NO = _centred(target_NO)
    deviation_O = target_NO.std(axis=0)
    target_NO = target_NO[:, deviation_O > 0] / deviation_O[deviation_O > 0]
    if target_NO.shape[1] <= _MAX_TARGETS:
        return target_NO
    return target_NO @ rng.normal(size=(target_NO.shape[1], _MAX_TARGETS))


def _ranks(value_NO: Floats) -> Floats:
    """Return the centred ranks of each column; equal values have their mean rank."""
    rank_NO = np.empty_like(value_NO)
    for column, value_N in enumerate(value_NO.T):
        _, code_N, count = np.unique(value_N, return_inverse=True, return_counts=True)
        rank_NO[:, column] = (np.cumsum(count) - (count - 1) / 2)[code_N]
    return _centred(rank_NO)


def _drop_non_finite(examples: Examples) -> Examples:
    """Drop examples with a non-finite value, which other checks report."""
    is_finite_N = torch.ones(len(examples), dtype=torch.bool)
    for values in (*input_parts(examples.inputs), examples.targets):
        if values.is_floating_point():
            is_finite_N &= torch.isfinite(values).reshape(len(values), -1).all(dim=1).cpu()
    if bool(is_finite_N.all()):
        return examples
    return examples.take(is_finite_N.nonzero().flatten())


def _signal_outcome(
    signal: SignalTest, examples: Examples, settings: PocSettings, *, expects_signal: bool
) -> CheckOutcome:
    numbers: dict[str, float | int | str] = {
        "explained_share": signal.r2,
        "critical_share": signal.critical_r2,
        "p_value": signal.p_value,
        "num_rows": len(examples),
    }
    observation = (
        f"Generic regressions on {len(examples):,} examples explain {signal.r2:.2%} of the target "
        f"(cross-validated); for shuffled targets, the critical value is {signal.critical_r2:.2%} "
        f"(p = {signal.p_value:.3g}, at most {settings.signal_alpha:g} is required)."
    )
    if signal.p_value <= settings.signal_alpha:
        return CheckOutcome(outcome="pass", summary=observation, numbers=numbers)
    limitation = _why_inconclusive(examples)
    if expects_signal and not limitation:
        return CheckOutcome(
            outcome="fail", summary=observation, numbers=numbers, fault="shuffled labels"
        )
    why = f" The test may have missed a signal: {limitation}." if limitation else ""
    why = why or " The workload expects no signal."
    return CheckOutcome(
        outcome="warn", summary=observation + why, numbers=numbers, fault="shuffled labels"
    )


def _why_inconclusive(examples: Examples) -> str:
    """Return why the test may have missed a real signal; "" if it probably has not missed one."""
    x, num_rows, num_values = _input_tensor(examples), len(examples), _num_values(examples)
    if num_rows < _MIN_CONCLUSIVE_ROWS:
        return f"there are only {num_rows:,} examples"
    # Bytes are pixels, which are numbers; wider integers may be tokens.
    if not x.is_floating_point() and x.dtype is not torch.uint8:
        return "inputs are integers, and the targets may depend on the order of tokens"
    if num_values > _MAX_INPUT_VALUES:
        return f"inputs have {num_values:,} values"
    if not examples.targets.is_floating_point() and examples.targets.ndim == 1:
        num_rows_C = torch.unique(examples.targets, return_counts=True)[1]
        if num_rows < _MIN_ROWS_PER_CLASS * len(num_rows_C):
            return f"there are only {num_rows:,} examples of {len(num_rows_C):,} classes"
        num_others = num_rows - int(num_rows_C.max())
        if num_others < _MIN_OTHER_ROWS:
            return f"all but {num_others:,} examples are of one class"
    return ""
