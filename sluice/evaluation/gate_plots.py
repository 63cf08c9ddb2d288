"""Pictures of a verdict for who reviews it: where the candidate loses, and what could be found.

Each function returns the bytes of a PNG.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from sluice.evaluation.estimate import Arm, mean_gain
from sluice.evaluation.losses import LossTable
from sluice.evaluation.plots import OUTCOME_COLOUR
from sluice.reports.figures import GRID, INK, MUTED, VALIDATION, as_png, new_figure, set_headline
from sluice.verdicts.verdict import Verdict

GROUPS = 10
_LOSS_COLOUR = OUTCOME_COLOUR["REJECT"]


def gain_by_difficulty(candidate: LossTable, reference: LossTable) -> NDArray[np.float64]:
    """Return the mean gain of each tenth of the rows (10,), the reference's easiest first.

    Rows are put in order by the mean loss of both arms: by the reference's alone, its unlucky
    rows would look like a gain at the hard end even between equal models.

    Raises:
        ContractError: The tables hold different rows.
    """
    ours, theirs = Arm.of(candidate), Arm.of(reference.aligned_to(candidate))
    gain_N = mean_gain(ours, theirs)
    order_N = np.argsort(ours.loss_SN.mean(axis=0) + theirs.loss_SN.mean(axis=0), kind="stable")
    parts = np.array_split(gain_N[order_N], min(GROUPS, gain_N.size))
    return np.array([part.mean() for part in parts])


def difficulty_png(candidate: LossTable, reference: LossTable, *, unit: str) -> bytes:
    """Draw the gain on easy and on hard rows: a better mean may be paid for by one kind.

    Raises:
        ContractError: The tables hold different rows.
    """
    gain_G = gain_by_difficulty(candidate, reference)
    figure, axes = new_figure(height_in=2.7)
    places = np.arange(1, gain_G.size + 1)
    known = np.isfinite(gain_G)
    colours = [VALIDATION if gain >= 0 else _LOSS_COLOUR for gain in gain_G[known]]
    axes.bar(places[known], gain_G[known], color=colours, width=0.75)
    if not known.all():
        axes.text(0.5, 0.5, "losses that are not finite", transform=axes.transAxes, ha="center")
    axes.axhline(0, color=INK, linewidth=1)
    axes.set_xticks(places)
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("tenth of the test rows, from the lowest to the highest loss of both")
    axes.set_ylabel(f"mean gain [{unit}]")
    losing = int((gain_G < 0).sum())
    headline = f"The candidate loses on {losing} of {gain_G.size} groups of rows"
    set_headline(axes, headline, "", colour=INK)
    return as_png(figure)


def power_curve(
    verdict: Verdict, gain_G: NDArray[np.float64], *, seeds: float = 1.0, rows: float = 1.0
) -> NDArray[np.float64]:
    """Return the chance of a PROMOTE at each true gain (G,), with so many times the evidence.

    The spread is that of this comparison; the distribution is Student's, moved.

    Args:
        verdict: Gives both parts of the variance.
        gain_G: True gains [unit].
        seeds: Times as many seeds of either arm.
        rows: Times as many test rows.
    """
    error = math.sqrt(verdict.seed_se**2 / seeds + verdict.row_se**2 / rows)
    freedom = verdict.degrees_of_freedom * min(seeds, rows)
    if not error > 0 or not math.isfinite(freedom):
        return np.full(gain_G.shape, math.nan)
    reach = float(stdtrit(freedom, 1 - verdict.alpha))
    score_G = (gain_G - verdict.required) / error - reach
    return np.asarray(stdtr(freedom, score_G), np.float64)


def power_png(verdict: Verdict, *, power: float) -> bytes:
    """Draw the chance of a PROMOTE over the true gain: with this evidence, more seeds, more rows.

    Args:
        verdict: Of the comparison.
        power: The chance that is called enough; a line marks it [rate].
    """
    figure, axes = new_figure(height_in=2.9)
    error = verdict.standard_error
    if math.isfinite(error) and error > 0:
        top = max(verdict.required + 5 * error, 1.15 * verdict.gain)
        gain_G = np.linspace(min(0.0, verdict.required), top, 200)
        for times, colour, width, words in (
            ({}, INK, 2.0, "this evidence"),
            ({"seeds": 2.0}, VALIDATION, 1.4, "twice the seeds"),
            ({"rows": 2.0}, MUTED, 1.4, "twice the test rows"),
        ):
            chance_G = power_curve(verdict, gain_G, **times)
            axes.plot(gain_G, chance_G, color=colour, linewidth=width, label=words)
        if gain_G[0] <= verdict.gain <= top:
            colour = OUTCOME_COLOUR[verdict.outcome]
            axes.axvline(verdict.gain, color=colour, linewidth=1.4, label="gain seen")
        axes.legend(loc="best", frameon=False, fontsize=8.5)
        axes.set_xlim(gain_G[0], top)
    else:
        axes.text(0.5, 0.5, "not computable", transform=axes.transAxes, ha="center")
    axes.axhline(power, color=GRID, linewidth=1.5, linestyle=(0, (4, 3)))
    axes.set_ylim(0, 1.02)
    axes.set_xlabel(f"true gain [{verdict.unit}]")
    axes.set_ylabel("chance of a PROMOTE")
    set_headline(axes, "What this comparison could have found", "", colour=INK)
    return as_png(figure)
