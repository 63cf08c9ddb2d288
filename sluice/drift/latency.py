"""Latency drift: are the slowest answers slower than they were? (ROLL-3).

Shape legend: N = requests of one window, R = resamples.
"""

import math

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sluice.base.errors import ContractError
from sluice.base.settings import Record
from sluice.config.drift_settings import DriftSettings
from sluice.drift.report import Verdict
from sluice.evaluation.variance import choose_block_length, shortest_block

QUANTILE = 0.95
_RESAMPLES = 1999


class LatencyReport(Record):
    """Whether the 95th percentile rose between two windows of requests."""

    verdict: Verdict
    reason: str
    remedy: str
    window: str
    reference_p95_s: float = Field(description="Of the reference [s].")
    p95_s: float = Field(description="Of the window [s].")
    ratio: float = Field(description="Window over reference.")
    lower_ratio: float = Field(description="One-sided bound at alpha; above the allowed: drift.")
    allowed_ratio: float = Field(description="Ratios up to this one do not matter.")
    alpha: float
    num_rows: int
    reference_rows: int
    block_length: int = Field(description="Requests that depend on each other [requests].")


def judge_latency(
    reference_N: NDArray[np.float64],
    window_N: NDArray[np.float64],
    settings: DriftSettings,
    *,
    window: str,
    seed: int,
) -> LatencyReport:
    """Say whether the 95th percentile rose by more than ``settings.max_latency_rise``.

    Both windows are drawn again in circular blocks; the bound is a percentile of the log ratio.
    Getting faster is no drift.

    Args:
        reference_N: Seconds of earlier requests, in time order [s].
        window_N: Seconds of the newest ones [s].
        settings: Rate of false alarms, fewest requests, and the rise that does not matter.
        window: What to call the window in the report.
        seed: Draws the blocks.

    Raises:
        ContractError: Seconds are not one-dimensional, or not finite and positive.

    Cost:
        Two windows of 2,000 requests: 0.15 s.
    """
    for name, x_N in (("reference", reference_N), ("window", window_N)):
        if x_N.ndim != 1 or not np.isfinite(x_N).all() or not (x_N > 0).all():
            raise ContractError(
                f"Seconds of the {name} must be positive numbers, one for each request, got shape "
                f"{x_N.shape} with {int((~(np.isfinite(x_N) & (x_N > 0))).sum())} that are not.",
                fix="Leave failed requests out: they have no latency.",
            )
    allowed = 1 + settings.max_latency_rise
    length = max(_block_length(reference_N), _block_length(window_N))
    needed = max(settings.min_rows, settings.min_blocks * length)
    few = [
        f"the {name} has {x_N.size} requests, required {needed}"
        for name, x_N in (("reference", reference_N), ("window", window_N))
        if x_N.size < needed
    ]
    was, now, low = math.nan, math.nan, math.nan
    if not few:
        rng = np.random.default_rng(seed)
        was, now = (float(_p95(x_N[None])[0]) for x_N in (reference_N, window_N))
        log_R = _drawn(window_N, length, rng) - _drawn(reference_N, length, rng)
        low = math.exp(float(np.quantile(log_R, settings.alpha)))
    ratio = now / was
    told = f"95 % of the answers took at most {1000 * now:.3g} ms, before {1000 * was:.3g} ms"
    if few:
        verdict: Verdict = "INCONCLUSIVE"
        reason = f"Too few requests: {'; '.join(few)}."
        remedy = "Wait for more requests, or let servers report more of them (samples_per_s)."
    elif low > allowed:
        verdict = "DRIFT"
        reason = f"{told}: {ratio:.3g} times, at least {low:.3g}; allowed {allowed:g}."
        remedy = "Look at the server's load and machine; training again makes no answer faster."
    else:
        verdict = "STABLE"
        reason = f"{told}: {ratio:.3g} times; more than {allowed:g} times is not proven."
        remedy = "Nothing to do."
    return LatencyReport(
        verdict=verdict,
        reason=reason,
        remedy=remedy,
        window=window,
        reference_p95_s=was,
        p95_s=now,
        ratio=ratio,
        lower_ratio=low,
        allowed_ratio=allowed,
        alpha=settings.alpha,
        num_rows=window_N.size,
        reference_rows=reference_N.size,
        block_length=length,
    )


def _block_length(x_N: NDArray[np.float64]) -> int:
    """Return how long requests depend on each other: by their ranks, whatever the tail."""
    shortest = shortest_block(max(x_N.size, 1), 1)
    if x_N.size < 10 or not x_N.std() > 0:
        return shortest
    rank_N = np.argsort(np.argsort(x_N, kind="stable"), kind="stable").astype(np.float64)
    return max(shortest, choose_block_length(rank_N - rank_N.mean(), 1))


def _p95(x_RN: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the 95th percentile of each row (R,), a value that occurs."""
    at = math.ceil(QUANTILE * x_RN.shape[1]) - 1
    found: NDArray[np.float64] = np.partition(x_RN, at, axis=1)[:, at]
    return found


def _drawn(x_N: NDArray[np.float64], length: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the log of the percentile (R,) of each resample, made of circular blocks."""
    blocks = -(-x_N.size // length)
    start_RB = rng.integers(x_N.size, size=(_RESAMPLES, blocks, 1))
    row_RN = (start_RB + np.arange(length)).reshape(_RESAMPLES, -1)[:, : x_N.size] % x_N.size
    return np.log(_p95(x_N[row_RN]))
