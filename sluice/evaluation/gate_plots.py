"""Plots of a verdict: the gain by difficulty of the rows, and the power of the comparison.

Each function that draws a plot returns the bytes of a PNG.

Shape legend: N = test rows, G = groups of rows in the plot by difficulty, T = true gains in the
plot of the power.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from sluice.evaluation.estimate import ArmLosses, mean_gain
from sluice.evaluation.losses import LossTable
from sluice.evaluation.plots import OUTCOME_COLOUR
from sluice.reports.figures import GRID, INK, MUTED, VALIDATION, as_png, new_figure, set_headline
from sluice.verdicts.verdict import Verdict

_MAX_GROUPS = 10
"""Maximum number of groups of rows in the plot by difficulty."""
_NEGATIVE_GAIN_COLOUR = OUTCOME_COLOUR["REJECT"]


def gain_by_difficulty(candidate: LossTable, reference: LossTable) -> NDArray[np.float64]:
    """Return the mean gain of each tenth of the rows, from easy to hard (G,).

    With fewer than ten rows, each row is a group. Rows are sorted by the mean loss of both arms.
    Sorting by the loss of the reference alone would show a spurious gain on its hardest rows, even
    between equal models (regression to the mean).

    Raises:
        ContractError: The tables contain different rows.
    """
    candidate_arm = ArmLosses.of(candidate)
    reference_arm = ArmLosses.of(reference.aligned_to(candidate))
    gain_N = mean_gain(candidate_arm, reference_arm)
    difficulty_N = candidate_arm.loss_SN.mean(axis=0) + reference_arm.loss_SN.mean(axis=0)
    order_N = np.argsort(difficulty_N, kind="stable")
    gain_groups = np.array_split(gain_N[order_N], min(_MAX_GROUPS, gain_N.size))
    return np.array([group.mean() for group in gain_groups])


def difficulty_png(candidate: LossTable, reference: LossTable, *, unit: str) -> bytes:
    """Plot the mean gain of rows of similar difficulty.

    The plot shows whether a better mean over all rows hides a deterioration on some rows.

    Raises:
        ContractError: The tables contain different rows.
    """
    gain_G = gain_by_difficulty(candidate, reference)
    figure, axes = new_figure(height_in=2.7)
    positions = np.arange(1, gain_G.size + 1)
    is_finite = np.isfinite(gain_G)
    colours = [VALIDATION if gain >= 0 else _NEGATIVE_GAIN_COLOUR for gain in gain_G[is_finite]]
    axes.bar(positions[is_finite], gain_G[is_finite], color=colours, width=0.75)
    if not is_finite.all():
        axes.text(0.5, 0.5, "non-finite losses", transform=axes.transAxes, ha="center")
    axes.axhline(0, color=INK, linewidth=1)
    axes.set_xticks(positions)
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("tenth of the test rows, by ascending mean loss of both arms")
    axes.set_ylabel(f"mean gain [{unit}]")
    num_worse = int((gain_G < 0).sum())
    headline = f"The candidate is worse on {num_worse} of {gain_G.size} groups of rows"
    set_headline(axes, headline, "", colour=INK)
    return as_png(figure)


def power_curve(
    verdict: Verdict,
    gain_T: NDArray[np.float64],
    *,
    seed_factor: float = 1.0,
    row_factor: float = 1.0,
) -> NDArray[np.float64]:
    """Return the power, the probability of a PROMOTE, at each true gain (T,).

    The power is computed from the variance of this comparison, with a shifted Student's t
    distribution.

    Args:
        verdict: Verdict with the variance components of seeds and rows.
        gain_T: True gains [unit].
        seed_factor: Factor by which the number of seeds of both arms is multiplied.
        row_factor: Factor by which the number of test rows is multiplied.
    """
    standard_error = math.sqrt(verdict.seed_se**2 / seed_factor + verdict.row_se**2 / row_factor)
    degrees_of_freedom = verdict.degrees_of_freedom * min(seed_factor, row_factor)
    if not standard_error > 0 or not math.isfinite(degrees_of_freedom):
        return np.full(gain_T.shape, math.nan)
    critical_t = float(stdtrit(degrees_of_freedom, 1 - verdict.alpha))
    score_T = (gain_T - verdict.required) / standard_error - critical_t
    return np.asarray(stdtr(degrees_of_freedom, score_T), np.float64)


def power_png(verdict: Verdict, *, power: float) -> bytes:
    """Plot the power over the true gain, and the power with twice the seeds or twice the rows.

    Args:
        verdict: Verdict of the comparison.
        power: Power that a horizontal line marks [rate].
    """
    figure, axes = new_figure(height_in=2.9)
    standard_error = verdict.standard_error
    if math.isfinite(standard_error) and standard_error > 0:
        largest_gain = max(verdict.required + 5 * standard_error, 1.15 * verdict.gain)
        gain_T = np.linspace(min(0.0, verdict.required), largest_gain, 200)
        for factors, colour, width, label in (
            ({}, INK, 2.0, "this evidence"),
            ({"seed_factor": 2.0}, VALIDATION, 1.4, "twice the seeds"),
            ({"row_factor": 2.0}, MUTED, 1.4, "twice the test rows"),
        ):
            power_T = power_curve(verdict, gain_T, **factors)
            axes.plot(gain_T, power_T, color=colour, linewidth=width, label=label)
        if gain_T[0] <= verdict.gain <= largest_gain:
            colour = OUTCOME_COLOUR[verdict.outcome]
            axes.axvline(verdict.gain, color=colour, linewidth=1.4, label="observed gain")
        axes.legend(loc="best", frameon=False, fontsize=8.5)
        axes.set_xlim(gain_T[0], largest_gain)
    else:
        axes.text(0.5, 0.5, "not computable", transform=axes.transAxes, ha="center")
    axes.axhline(power, color=GRID, linewidth=1.5, linestyle=(0, (4, 3)))
    axes.set_ylim(0, 1.02)
    axes.set_xlabel(f"true gain [{verdict.unit}]")
    axes.set_ylabel("probability of a PROMOTE")
    set_headline(axes, "Power of this comparison", "", colour=INK)
    return as_png(figure)
