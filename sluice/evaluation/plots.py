"""Plots of an evaluation: gain per fold, training curves, cumulative gain over the test rows.

Each function returns the bytes of a PNG. The figures are drawn on matplotlib's Agg canvas without
pyplot, which has global state.
"""

import math
import re

import numpy as np
import pandas as pd

from sluice.base.pluralize import pluralize
from sluice.evaluation.estimate import ArmLosses, mean_gain
from sluice.evaluation.losses import LossTable
from sluice.reports.figures import (
    GRID,
    INK,
    MUTED,
    TRAIN,
    VALIDATION,
    apply_style,
    as_png,
    empty_figure,
    new_figure,
    set_headline,
)
from sluice.verdicts.verdict import Verdict

OUTCOME_COLOUR = {
    "PROMOTE": "#1a7f4b",
    "REJECT": "#ba2525",
    "EQUIVALENT": "#52606d",
    "INCONCLUSIVE": "#b7791f",
}
OUTCOME_LABELS = {
    "PROMOTE": "PROMOTE: the candidate is significantly better",
    "REJECT": "REJECT: the gain is too small, or a guard failed",
    "EQUIVALENT": "EQUIVALENT: no relevant difference",
    "INCONCLUSIVE": "INCONCLUSIVE: the evidence is not sufficient",
}
_DATE_PREFIX = re.compile(r"\d{4}-\d{2}-\d{2}")


def fold_gains_png(verdict: Verdict) -> bytes:
    """Plot the gain of each fold and of all folds, with bounds and the required gain.

    Lines extend from the one-sided lower to the one-sided upper bound at the gate's alpha.
    Gains that cannot be computed are labelled instead of plotted.
    """
    names = [f"fold {fold.fold_id}\n{fold.num_rows} rows" for fold in verdict.folds]
    names.append(f"all folds\n{verdict.num_rows} rows")
    gains = [(fold.gain, fold.low, fold.high) for fold in verdict.folds]
    gains.append((verdict.gain, verdict.lower_bound, verdict.upper_bound))
    figure, axes = new_figure(height_in=0.9 + 0.42 * len(gains) + 0.5)
    colour = OUTCOME_COLOUR[verdict.outcome]
    for position, (gain, low, high) in enumerate(gains):
        is_all_folds = position == len(gains) - 1
        line_colour = colour if is_all_folds else MUTED
        if not all(map(math.isfinite, (gain, low, high))):
            axes.text(
                0.02,
                position,
                "not computable",
                color=line_colour,
                va="center",
                transform=axes.get_yaxis_transform(),
            )
            continue
        axes.plot(
            [low, high],
            [position, position],
            color=line_colour,
            linewidth=3.2 if is_all_folds else 1.8,
            solid_capstyle="butt",
        )
        axes.plot([gain], [position], "o", color=line_colour, markersize=8 if is_all_folds else 6)
    axes.axhline(len(gains) - 1.5, color=GRID, linewidth=1)
    axes.axvline(0, color=INK, linewidth=1, label="no gain")
    if verdict.required != 0:
        axes.axvline(
            verdict.required, color=INK, linewidth=1, linestyle=(0, (4, 3)), label="required gain"
        )
    axes.set_yticks(range(len(gains)), names)
    axes.set_ylim(len(gains) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"gain: loss of reference minus loss of candidate [{verdict.unit}]")
    confidence = 100 * (1 - verdict.alpha)
    set_headline(
        axes,
        OUTCOME_LABELS[verdict.outcome],
        f"gain {verdict.gain:.3g}, {confidence:.3g} % lower bound {verdict.lower_bound:.3g}, "
        f"required > {verdict.required:.3g}",
        colour=colour,
    )
    if verdict.required != 0:
        axes.legend(loc="best", frameon=False, fontsize=8.5)
    return as_png(figure)


def training_curves_png(curves: pd.DataFrame, *, unit: str = "loss units") -> bytes:
    """Plot training and validation loss by epoch: one panel per fold, one thin line per seed.

    Args:
        curves: Columns seed, fold_id, epoch, train_loss, val_loss; one row per epoch.
        unit: Unit of the losses.
    """
    folds = sorted(curves["fold_id"].unique())
    num_columns = min(4, len(folds))
    num_rows = math.ceil(len(folds) / num_columns)
    figure = empty_figure(height_in=0.9 + 1.9 * num_rows)
    panels = figure.subplots(
        num_rows, num_columns, sharex=True, sharey=True, squeeze=False
    ).reshape(-1)
    for panel, fold in zip(panels, folds, strict=False):
        apply_style(panel)
        for _, seed_curve in curves[curves["fold_id"] == fold].sort_values("epoch").groupby("seed"):
            for column, colour in (("train_loss", TRAIN), ("val_loss", VALIDATION)):
                panel.plot(
                    seed_curve["epoch"], seed_curve[column], color=colour, linewidth=0.9, alpha=0.85
                )
        panel.set_title(f"fold {fold}", fontsize=9, color=INK, loc="left")
    for panel in panels[len(folds) :]:
        panel.set_visible(False)
    num_seeds = curves["seed"].nunique()
    figure.suptitle(
        f"Loss by epoch, {pluralize(num_seeds, 'seed')}: training (grey) and validation (blue)",
        fontsize=10.5,
        fontweight="bold",
        color=INK,
        x=0.01,
        ha="left",
    )
    figure.supxlabel("epoch", fontsize=9, color=INK)
    figure.supylabel(f"loss [{unit}]", fontsize=9, color=INK)
    return as_png(figure)


def cumulative_gain_png(
    candidate: LossTable, reference: LossTable, *, unit: str = "loss units"
) -> bytes:
    """Plot the cumulative gain over the test rows, fold by fold in time order.

    A steady increase shows a gain on all rows; a single step shows a gain on few rows. If the index
    labels are dates, the first date of each fold is shown.

    Raises:
        ContractError: The tables contain different rows.
    """
    reference = reference.aligned_to(candidate)
    gain_N = mean_gain(ArmLosses.of(candidate), ArmLosses.of(reference))
    # Within a fold, the rows of a loss table are in time order. A stable sort by fold keeps
    # this order.
    order_N = np.argsort(candidate.fold_N, kind="stable")
    cumulative_gain_N = np.cumsum(gain_N[order_N])
    fold_N, label_N = candidate.fold_N[order_N], candidate.label_N[order_N]
    has_dates = bool(_DATE_PREFIX.match(label_N[0]))
    figure, axes = new_figure(height_in=2.9)
    axes.plot(
        np.arange(1, cumulative_gain_N.size + 1), cumulative_gain_N, color=VALIDATION, linewidth=1.4
    )
    axes.axhline(0, color=INK, linewidth=1)
    starts = [0, *(np.flatnonzero(np.diff(fold_N)) + 1)]
    for start in starts:
        if start:
            axes.axvline(start + 0.5, color=MUTED, linewidth=0.8, linestyle=(0, (2, 3)))
        axes.text(
            start + 1,
            1.0,
            f" fold {fold_N[start]}\n {label_N[start][:10] if has_dates else ''}",
            transform=axes.get_xaxis_transform(),
            fontsize=7.5,
            color=MUTED,
            va="top",
        )
    if not np.isfinite(cumulative_gain_N).all():
        axes.text(0.5, 0.5, "non-finite losses", transform=axes.transAxes, ha="center")
    axes.set_xlim(0, cumulative_gain_N.size)
    axes.margins(y=0.2)
    axes.set_xlabel("test row, in time order" if has_dates else "test row")
    axes.set_ylabel(f"cumulative gain [{unit}]")
    set_headline(axes, "Cumulative gain: above zero the candidate is better", "", colour=INK)
    return as_png(figure)
