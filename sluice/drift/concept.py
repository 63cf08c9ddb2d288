"""Concept drift: once labels arrive, does the model lose more than it did? (ROLL-3).

The inputs may look as before while what they mean has changed; only losses show that.

Shape legend: N = rows of one window.
"""

import math

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.special import stdtr, stdtrit

from sluice.base.errors import ContractError
from sluice.base.settings import Record
from sluice.config.drift_settings import DriftSettings
from sluice.drift.report import Verdict
from sluice.evaluation.variance import choose_block_length, pooled, rows_part


class ConceptReport(Record):
    """Whether the mean loss rose between two windows."""

    verdict: Verdict
    reason: str
    remedy: str
    window: str
    reference_loss: float = Field(description="Mean of the reference [loss units].")
    loss: float = Field(description="Mean of the window [loss units].")
    rise: float = Field(description="Window less reference [loss units].")
    lower_bound: float = Field(description="One-sided, at alpha; above the allowed it is drift.")
    upper_bound: float = Field(description="One-sided: a larger rise would have been seen.")
    required: float = Field(description="Rises up to this one do not matter [loss units].")
    p_value: float = Field(description="One-sided, of a true rise no larger than that.")
    effect: float = Field(description="Cohen's d: the rise over the spread of the losses.")
    alpha: float
    num_rows: int
    reference_rows: int
    block_length: int = Field(description="Rows that depend on each other [rows].")


def judge_losses(
    reference_N: NDArray[np.float64],
    window_N: NDArray[np.float64],
    settings: DriftSettings,
    *,
    horizon_rows: int,
    window: str,
) -> ConceptReport:
    """Say whether the mean loss rose by more than ``settings.min_loss_rise``.

    The bound is the promotion gate's for rows: each window's variance over blocks of dependent
    rows, the two added because they share no row, Student's distribution with Satterthwaite's
    degrees of freedom. A fall of the loss is not drift.

    Args:
        reference_N: Losses of the model when it was accepted, in time order [loss units].
        window_N: Losses of the same model lately, in time order [loss units].
        settings: Rate of false alarms, fewest rows, and the rise that does not matter.
        horizon_rows: How many rows ahead a target looks; 0 when rows are independent [rows].
        window: What to call the window in the report.

    Raises:
        ContractError: Losses are not one-dimensional, or there are none.
    """
    for name, x_N in (("reference", reference_N), ("window", window_N)):
        if x_N.ndim != 1 or x_N.size == 0:
            raise ContractError(
                f"Losses of the {name} must be one for each row, got shape {x_N.shape}.",
                fix="Average over seeds, and hand over one loss for each labelled row.",
            )
    # Bad losses make the numbers NaN and the verdict INCONCLUSIVE; numpy need not warn as well.
    with np.errstate(invalid="ignore"):
        return _judge(reference_N, window_N, settings, horizon_rows=horizon_rows, window=window)


def _judge(
    reference_N: NDArray[np.float64],
    window_N: NDArray[np.float64],
    settings: DriftSettings,
    *,
    horizon_rows: int,
    window: str,
) -> ConceptReport:
    length = _block_length(reference_N, window_N, horizon_rows)
    whole = pooled((rows_part(reference_N, length), rows_part(window_N, length)))
    rise = float(window_N.mean() - reference_N.mean())
    error, required = math.sqrt(whole.variance), settings.min_loss_rise
    reach = float(stdtrit(whole.degrees_of_freedom, 1 - settings.alpha)) * error
    score = (rise - required) / error if error > 0 else math.nan
    spread = math.sqrt((reference_N.var() + window_N.var()) / 2)
    verdict, reason, remedy = _decide(
        reference_N, window_N, settings, length, rise=rise, reach=reach
    )
    return ConceptReport(
        verdict=verdict,
        reason=reason,
        remedy=remedy,
        window=window,
        reference_loss=float(reference_N.mean()),
        loss=float(window_N.mean()),
        rise=rise,
        lower_bound=rise - reach,
        upper_bound=rise + reach,
        required=required,
        p_value=float(stdtr(whole.degrees_of_freedom, -score)),
        effect=rise / spread if spread > 0 else math.nan,
        alpha=settings.alpha,
        num_rows=window_N.size,
        reference_rows=reference_N.size,
        block_length=length,
    )


def _block_length(
    reference_N: NDArray[np.float64], window_N: NDArray[np.float64], horizon_rows: int
) -> int:
    """Return the longer of what the two windows need, each by the gate's rule."""
    if horizon_rows == 0:
        return 1
    lengths = [2 * horizon_rows - 1]
    for x_N in (reference_N, window_N):
        if np.isfinite(x_N).all() and x_N.std() > 0 and x_N.size >= 2:
            lengths.append(choose_block_length(x_N - x_N.mean(), horizon_rows))
    return max(lengths)


def _decide(
    reference_N: NDArray[np.float64],
    window_N: NDArray[np.float64],
    settings: DriftSettings,
    length: int,
    *,
    rise: float,
    reach: float,
) -> tuple[Verdict, str, str]:
    needed = max(settings.min_rows, settings.min_blocks * length)
    for name, x_N in (("reference", reference_N), ("window", window_N)):
        bad = int((~np.isfinite(x_N)).sum())
        if bad:
            said = f"{bad} of {x_N.size} losses of the {name} are not finite."
            return "INCONCLUSIVE", said, "Find out why the model has no loss on these rows."
        if x_N.size < needed:
            said = f"The {name} has {x_N.size} labelled rows, required {needed}."
            return "INCONCLUSIVE", said, f"Wait for {needed - x_N.size} more labels."
    if not reach > 0:
        said = "All losses of both windows are the same, so their spread is unknown."
        return "INCONCLUSIVE", said, "Check that losses are computed for each row."
    bound = f"rise {rise:.3g}, at least {rise - reach:.3g} and at most {rise + reach:.3g}"
    if rise - reach > settings.min_loss_rise:
        return (
            "DRIFT",
            f"The mean loss rose: {bound}; allowed {settings.min_loss_rise:g}.",
            "What the inputs mean has changed: train again on newer labelled rows.",
        )
    return "STABLE", f"No rise of the mean loss is proven: {bound}.", "Nothing to do."
