"""Concept drift: tests on labelled rows whether the mean loss of a model has increased.

The relation between inputs and targets may change although the distribution of the inputs does not.
Only the losses show such a change.

Shape legend: N = rows of one window.
"""

import math

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.special import stdtr, stdtrit

from sluice.base.errors import ContractError
from sluice.base.pluralize import pluralize
from sluice.base.settings import Record
from sluice.config.drift_settings import DriftSettings
from sluice.drift.report import DriftVerdict
from sluice.evaluation.variance import add_components, choose_block_length, rows_component


class ConceptDriftReport(Record):
    """Test result for an increase of the mean loss between two windows."""

    verdict: DriftVerdict
    reason: str
    remedy: str
    window: str
    reference_loss: float = Field(description="Mean loss of the reference [loss units].")
    loss: float = Field(description="Mean loss of the window [loss units].")
    rise: float = Field(
        description="Increase: mean loss of the window minus mean loss of the reference [loss "
        "units]."
    )
    lower_bound: float = Field(
        description="One-sided lower confidence bound of the increase, confidence 1 - alpha [loss "
        "units]. The verdict is DRIFT if the bound is above ``required``."
    )
    upper_bound: float = Field(
        description="One-sided upper confidence bound of the increase, confidence 1 - alpha [loss "
        "units]."
    )
    required: float = Field(
        description="Allowed increase (setting ``min_loss_increase``) [loss units]."
    )
    p_value: float = Field(
        description="One-sided p-value of the hypothesis that the increase is at most ``required``."
    )
    effect: float = Field(description="Cohen's d: increase / standard deviation of the losses.")
    alpha: float
    num_rows: int
    reference_rows: int
    block_length: int = Field(
        description="Number of consecutive rows that are treated as dependent [rows]."
    )


def evaluate_losses(
    reference_N: NDArray[np.float64],
    window_N: NDArray[np.float64],
    settings: DriftSettings,
    *,
    horizon_rows: int,
    window: str,
) -> ConceptDriftReport:
    """Test whether the mean loss increased by more than ``settings.min_loss_increase``.

    The bounds are computed as in the promotion gate. The variance of each window is estimated over
    blocks of dependent rows. Both variances are added, because the windows do not overlap. The
    quantiles come from Student's t distribution with Satterthwaite's degrees of freedom. A decrease
    of the loss is not drift.

    Args:
        reference_N: Held-out losses of the model at registration, in time order [loss units].
        window_N: Recent losses of the same model, in time order [loss units].
        settings: False alarm rate, minimum number of rows, and allowed increase.
        horizon_rows: Forecast horizon of the target; 0 for independent rows [rows].
        window: Identifier of the window in the report.

    Raises:
        ContractError: Losses are not one-dimensional, or empty.
    """
    for name, x_N in (("reference", reference_N), ("window", window_N)):
        if x_N.ndim != 1 or x_N.size == 0:
            raise ContractError(
                f"Losses of the {name} must have shape (rows,) with at least one row, got shape "
                f"{x_N.shape}.",
                fix="Average over seeds, and pass one loss for each labelled row.",
            )
    # Non-finite losses make the verdict INCONCLUSIVE, so numpy's warnings are not needed.
    with np.errstate(invalid="ignore"):
        return _evaluate(reference_N, window_N, settings, horizon_rows=horizon_rows, window=window)


def _evaluate(
    reference_N: NDArray[np.float64],
    window_N: NDArray[np.float64],
    settings: DriftSettings,
    *,
    horizon_rows: int,
    window: str,
) -> ConceptDriftReport:
    length = _block_length(reference_N, window_N, horizon_rows)
    difference = add_components(
        (rows_component(reference_N, length), rows_component(window_N, length))
    )
    rise = float(window_N.mean() - reference_N.mean())
    standard_error = math.sqrt(difference.variance)
    allowed_increase = settings.min_loss_increase
    half_width = float(stdtrit(difference.degrees_of_freedom, 1 - settings.alpha)) * standard_error
    t_statistic = (rise - allowed_increase) / standard_error if standard_error > 0 else math.nan
    pooled_std = math.sqrt((reference_N.var() + window_N.var()) / 2)
    verdict, reason, remedy = _decide(
        reference_N, window_N, settings, length, rise=rise, half_width=half_width
    )
    return ConceptDriftReport(
        verdict=verdict,
        reason=reason,
        remedy=remedy,
        window=window,
        reference_loss=float(reference_N.mean()),
        loss=float(window_N.mean()),
        rise=rise,
        lower_bound=rise - half_width,
        upper_bound=rise + half_width,
        required=allowed_increase,
        p_value=float(stdtr(difference.degrees_of_freedom, -t_statistic)),
        effect=rise / pooled_std if pooled_std > 0 else math.nan,
        alpha=settings.alpha,
        num_rows=window_N.size,
        reference_rows=reference_N.size,
        block_length=length,
    )


def _block_length(
    reference_N: NDArray[np.float64], window_N: NDArray[np.float64], horizon_rows: int
) -> int:
    """Return the longer of both windows' block lengths, as the promotion gate chooses them."""
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
    half_width: float,
) -> tuple[DriftVerdict, str, str]:
    """Return verdict, reason and remedy for an increase ``rise`` with bounds +- ``half_width``."""
    required_rows = max(settings.min_rows, settings.min_blocks * length)
    for name, x_N in (("reference", reference_N), ("window", window_N)):
        num_nonfinite = int((~np.isfinite(x_N)).sum())
        if num_nonfinite:
            reason = f"{num_nonfinite} of {x_N.size} losses of the {name} are not finite."
            return (
                "INCONCLUSIVE",
                reason,
                "Find out why the model has no finite loss on these rows.",
            )
        if x_N.size < required_rows:
            reason = (
                f"The {name} has {pluralize(x_N.size, 'labelled row')}, required {required_rows}."
            )
            num_missing = required_rows - x_N.size
            return (
                "INCONCLUSIVE",
                reason,
                f"Wait for {pluralize(num_missing, 'more label')}."
                if name == "window"
                else f"Train the version again with {pluralize(num_missing, 'more held-out row')}.",
            )
    if not half_width > 0:
        reason = "The losses do not vary within either window, so their variance is unknown."
        return "INCONCLUSIVE", reason, "Check that losses are computed for each row."
    details = f"increase {rise:.3g}, bounds {rise - half_width:.3g} to {rise + half_width:.3g}"
    if rise - half_width > settings.min_loss_increase:
        return (
            "DRIFT",
            f"The mean loss increased: {details}; allowed {settings.min_loss_increase:g}.",
            "The relation of inputs and targets has changed: retrain on newer labelled rows.",
        )
    limit = f" by more than {settings.min_loss_increase:g}" if settings.min_loss_increase else ""
    return (
        "STABLE",
        f"No significant increase of the mean loss{limit}: {details}.",
        "Nothing to do.",
    )
