"""POC-9: do the targets depend on the features at all, before any model is trained?

Shape legend: N = examples, P = values of an input, M = columns of a feature map, O = columns of
the targets, K = permutations and the real order first.
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
from sluice.failfast.learning.instantiation import too_few
from sluice.failfast.learning.probe import spread
from sluice.findings.finding import Finding
from sluice.workloads.workload import Examples

Floats = NDArray[np.float64]

_MIN_ROWS = 50
_FEW_ROWS = 200
"""With fewer, a signal of a few per cent does not show, so its absence proves little."""

_FEW_PER_CLASS = 10
_WIDE_INPUT = 1024
"""Inputs with more values (large images) may hide a signal from these maps."""

_MAX_TOKEN = 2**31
_MAX_VALUES = 100_000_000
_MAX_COLUMNS = 512
_RANDOM_COLUMNS = 256
_MAX_PRODUCT_INPUTS = 24
_MAX_TARGETS = 4
_RIDGES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""Relative to the mean eigenvalue of the map."""

_CLIP_DEVIATIONS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """How much of the targets a generic regression explains, against shuffled targets."""

    r2: float
    """Largest generalised cross-validated share of explained variance."""
    critical_r2: float
    """The one that shuffled targets exceed at the rate ``signal_alpha``."""
    p_value: float


def check_signal(train: Examples, settings: PocSettings, *, required: bool, seed: int) -> Finding:
    """Ask whether the targets depend on the features, by shuffling the targets (POC-9).

    Generic ridge regressions (on the inputs, their products, and random Fourier features, of the
    whole window and of its last row; of integers also on how often and where each value occurs)
    explain the targets' ranks and how far these are from the middle. The best of them must explain
    more than after shuffling; the shuffles search just as hard, so a dependence that is not there
    is seen at a rate of at most ``signal_alpha``.

    When nothing is seen it fails only where these maps would have seen much: enough rows, enough
    per class, inputs that are numbers and not too many. Elsewhere, and when no signal is
    ``required``, it warns.

    Args:
        train: Train examples of a fold.
        settings: Rows, shuffles, rate.
        required: The workload expects a signal.
        seed: Seeds random features and shuffles.

    Cost:
        About half a second for 2,000 examples of 198 values.

    Assumes:
        Rows are exchangeable. Neighbouring rows of a time series are not: then a signal may be
        seen that is not there, never the other way round.

    Source:
        Phipson and Smyth (2010), "Permutation P-values Should Never Be Zero", on p-values.
    """
    rows = min(settings.signal_rows, max(_FEW_ROWS, _MAX_VALUES // max(1, train.x[0].numel())))
    chosen = _complete(spread(train, rows))
    if len(chosen) < _MIN_ROWS:
        return too_few(len(chosen), _MIN_ROWS)
    if bool((chosen.y == chosen.y[:1]).all()):
        return Finding(
            outcome="insufficient",
            summary=f"All targets of {len(chosen)} examples are equal.",
            cause="The target column holds one value only.",
            fix="Check how targets are made and joined to rows.",
        )
    signal = find_signal(
        chosen,
        num_permutations=settings.signal_permutations,
        alpha=settings.signal_alpha,
        seed=derive_seed(seed, "poc_signal"),
    )
    return _judge(signal, chosen, settings, required=required)


def find_signal(examples: Examples, *, num_permutations: int, alpha: float, seed: int) -> Signal:
    """Return the share that generic regressions explain, and its p-value under permutation.

    Args:
        examples: Complete examples, inputs and targets of any shape.
        num_permutations: Shuffles of the targets.
        alpha: Rate at which ``critical_r2`` is exceeded under shuffling.
        seed: Seeds random features and shuffles.
    """
    rng = np.random.default_rng(seed)
    order_KN = np.stack(
        [
            np.arange(len(examples)),
            *(rng.permuted(np.arange(len(examples))) for _ in range(num_permutations)),
        ]
    )
    targets = _targets(examples.y, rng)
    best_K = np.full(len(order_KN), -np.inf)
    for map_NM in _maps(examples.x, rng):
        value_M, basis_NM = _axes(map_NM)
        for target_NO in targets:
            best_K = np.maximum(best_K, _explained(value_M, basis_NM, target_NO, order_KN))
    real, shuffled_K = float(best_K[0]), best_K[1:]
    return Signal(
        r2=real,
        critical_r2=float(np.quantile(shuffled_K, 1 - alpha)),
        p_value=float((1 + (shuffled_K >= real).sum()) / (1 + len(shuffled_K))),
    )


def _axes(map_NM: Floats) -> tuple[Floats, Floats]:
    """Return the map's eigenvalues above rounding, and its orthonormal axes over the examples."""
    num_rows, num_columns = map_NM.shape
    # Both products have the same eigenvalues: the smaller is decomposed, in cubic time.
    few_rows = num_rows < num_columns
    value_M, vector_MM = np.linalg.eigh(map_NM @ map_NM.T if few_rows else map_NM.T @ map_NM)
    known = value_M > 1e-9 * value_M[-1]
    value_M, vector_MM = value_M[known], vector_MM[:, known]
    return value_M, vector_MM if few_rows else map_NM @ (vector_MM / np.sqrt(value_M))


def _explained(
    value_M: Floats, basis_NM: Floats, target_NO: Floats, order_KN: NDArray[np.int64]
) -> Floats:
    """Return the generalised cross-validated R2 of the best ridge, for every order of targets."""
    num_rows, num_targets = target_NO.shape
    # Permuted targets side by side: all shuffles are one matrix product.
    side_by_side = target_NO[order_KN].transpose(1, 0, 2).reshape(num_rows, -1)
    energy_MK = (basis_NM.T @ side_by_side) ** 2
    energy_MK = energy_MK.reshape(len(value_M), -1, num_targets).sum(axis=2)
    total = float((target_NO**2).sum())
    best_K = np.full(len(order_KN), -np.inf)
    for ridge in _RIDGES:
        kept_M = value_M / (value_M + ridge * value_M.mean())
        left_K = total - (2 * kept_M - kept_M**2) @ energy_MK
        # One degree of freedom is the mean.
        freedom = 1 - (1 + kept_M.sum()) / num_rows
        if freedom > 0.05:
            best_K = np.maximum(best_K, 1 - left_K / (total * freedom**2))
    return best_K


def _maps(x: Tensor, rng: np.random.Generator) -> Iterator[Floats]:
    """Yield centred feature maps (N, M) of the inputs."""
    if x[0].numel() <= _WIDE_INPUT and _is_whole(x):
        # Categories, tokens, counts or pixels: both readings are tried.
        yield from _token_maps(x.cpu().numpy().reshape(len(x), -1).astype(np.int64))
    whole_NP = _standardised(x)
    yield _reduced(whole_NP, rng)
    yield _fourier(whole_NP, rng)
    last_NP = _standardised(x[:, -1]) if x.ndim == 3 and x.shape[1] > 1 else whole_NP
    if last_NP is not whole_NP:
        yield _fourier(last_NP, rng)
    if last_NP.shape[1] <= _MAX_PRODUCT_INPUTS:
        left, right = np.triu_indices(last_NP.shape[1])
        yield _centred(np.hstack([last_NP, last_NP[:, left] * last_NP[:, right]]))


def _is_whole(x: Tensor) -> bool:
    if not x.is_floating_point():
        return True
    return bool(((x == x.trunc()) & (x.abs() < _MAX_TOKEN)).all())


def _token_maps(token_NP: NDArray[np.int64]) -> Iterator[Floats]:
    """Yield how often each token occurs, and which one stands at each place, both hashed."""
    row_N = np.arange(len(token_NP))[:, None]
    place_P = np.arange(token_NP.shape[1])
    # Multiplying by a large odd number spreads neighbours over the columns.
    for code_NP in (token_NP, token_NP * 1_000_003 + place_P * 7_919):
        place_NP = row_N * _MAX_COLUMNS + code_NP % (_MAX_COLUMNS - 1)
        count = np.bincount(place_NP.ravel(), minlength=len(token_NP) * _MAX_COLUMNS)
        yield _centred(count.reshape(len(token_NP), -1).astype(np.float64))


def _fourier(input_NP: Floats, rng: np.random.Generator) -> Floats:
    """Return random Fourier features of a Gaussian kernel as wide as the median distance."""
    some = input_NP[np.linspace(0, len(input_NP) - 1, min(len(input_NP), 200)).astype(np.int64)]
    squared = (some**2).sum(axis=1)
    distance = np.sqrt(np.maximum(squared[:, None] + squared - 2 * some @ some.T, 0.0))
    width = float(np.median(distance[np.triu_indices(len(some), 1)])) or 1.0
    weight_PM = rng.normal(size=(input_NP.shape[1], _RANDOM_COLUMNS)) / width
    phase_M = rng.uniform(0, 2 * math.pi, _RANDOM_COLUMNS)
    return _centred(np.cos(input_NP @ weight_PM + phase_M))


def _reduced(input_NP: Floats, rng: np.random.Generator) -> Floats:
    """Return the inputs, or random sums of them when there are many."""
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
    # A few wild cells must not be all that is looked at.
    return np.asarray(value_NP.clip(-_CLIP_DEVIATIONS, _CLIP_DEVIATIONS))


def _centred(value_NP: Floats) -> Floats:
    return np.asarray(value_NP - value_NP.mean(axis=0))


def _targets(y: Tensor, rng: np.random.Generator) -> list[Floats]:
    """Return what is to be explained: classes as 0 and 1, numbers as ranks and as extremes."""
    if not y.is_floating_point():
        flat_NP = y.cpu().numpy().reshape(len(y), -1)
        classes, code_N = np.unique(flat_NP[:, 0], return_inverse=True)
        if flat_NP.shape[1] == 1 and len(classes) <= len(y) // 2:
            return [_few(np.eye(len(classes))[code_N], rng)]
    value_NO = y.detach().cpu().double().numpy().reshape(len(y), -1)
    rank_NO = _few(_ranks(value_NO), rng)
    extreme_NO = _ranks(np.abs(rank_NO))
    return [rank_NO, extreme_NO] if (extreme_NO.std(axis=0) > 0).any() else [rank_NO]


def _few(target_NO: Floats, rng: np.random.Generator) -> Floats:
    """Return standardised targets, or a few random mixtures of them when they are many."""
    target_NO = _centred(target_NO)
    deviation_O = target_NO.std(axis=0)
    target_NO = target_NO[:, deviation_O > 0] / deviation_O[deviation_O > 0]
    if target_NO.shape[1] <= _MAX_TARGETS:
        return target_NO
    return target_NO @ rng.normal(size=(target_NO.shape[1], _MAX_TARGETS))


def _ranks(value_NO: Floats) -> Floats:
    """Return centred mid-ranks by column; equal values share one."""
    rank_NO = np.empty_like(value_NO)
    for column, value_N in enumerate(value_NO.T):
        _, code_N, count = np.unique(value_N, return_inverse=True, return_counts=True)
        rank_NO[:, column] = (np.cumsum(count) - (count - 1) / 2)[code_N]
    return _centred(rank_NO)


def _complete(examples: Examples) -> Examples:
    """Leave out examples with a value that is not finite; other checks name them."""
    good = torch.ones(len(examples), dtype=torch.bool)
    for values in (examples.x, examples.y):
        if values.is_floating_point():
            good &= torch.isfinite(values).reshape(len(values), -1).all(dim=1).cpu()
    if bool(good.all()):
        return examples
    return Examples(x=examples.x[good], y=examples.y[good], rows=examples.rows[good.numpy()])


def _judge(signal: Signal, examples: Examples, settings: PocSettings, *, required: bool) -> Finding:
    numbers: dict[str, float | int | str] = {
        "explained_share": signal.r2,
        "critical_share": signal.critical_r2,
        "p_value": signal.p_value,
        "num_rows": len(examples),
    }
    seen = (
        f"Generic regressions on {len(examples)} examples explain {signal.r2:.2%} of the target "
        f"(cross-validated); shuffled targets reach {signal.critical_r2:.2%} "
        f"(p = {signal.p_value:.3g}, at most {settings.signal_alpha:g} is required)."
    )
    if signal.p_value <= settings.signal_alpha:
        return Finding(outcome="pass", summary=seen, numbers=numbers)
    blind = _blind_spot(examples)
    if required and not blind:
        return Finding(outcome="fail", summary=seen, numbers=numbers, kind="no signal")
    why = f" This proves little: {blind}." if blind else " The workload expects no signal."
    return Finding(outcome="warn", summary=seen + why, numbers=numbers, kind="no signal")


def _blind_spot(examples: Examples) -> str:
    """Return why a real signal may have been missed; empty when that is unlikely."""
    num_rows, num_values = len(examples), examples.x[0].numel()
    if num_rows < _FEW_ROWS:
        return f"{num_rows} examples are few"
    # Bytes are pixels, to be judged as numbers; wider integers may be tokens.
    if not examples.x.is_floating_point() and examples.x.dtype is not torch.uint8:
        return "inputs are integers, and the order of tokens may be what matters"
    if num_values > _WIDE_INPUT:
        return f"inputs have {num_values} values"
    if not examples.y.is_floating_point() and examples.y.ndim == 1:
        num_classes = len(torch.unique(examples.y))
        if num_rows < _FEW_PER_CLASS * num_classes:
            return f"{num_classes} classes share {num_rows} examples"
    return ""
