"""Small pictures for people: the verdict per fold, training curves, gain over time.

Each function returns the bytes of a PNG. Figures are made on matplotlib's Agg canvas directly,
so no global state is read or changed.
"""

import math
import re
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from sluice.evaluation.estimate import Arm, mean_gain
from sluice.evaluation.losses import LossTable
from sluice.reports.figures import (
    GRID,
    INK,
    MUTED,
    TRAIN,
    VALIDATION,
    _blank,
    _style,
    as_png,
    new_figure,
    set_headline,
)
from sluice.verdicts.verdict import Verdict

if TYPE_CHECKING:
    pass

OUTCOME_COLOUR = {
    "PROMOTE": "#1a7f4b",
    "REJECT": "#ba2525",
    "EQUIVALENT": "#52606d",
    "INCONCLUSIVE": "#b7791f",
}
OUTCOME_WORDS = {
    "PROMOTE": "PROMOTE: the candidate is proven better",
    "REJECT": "REJECT: the candidate is not good enough, proven",
    "EQUIVALENT": "EQUIVALENT: no difference that matters",
    "INCONCLUSIVE": "INCONCLUSIVE: nothing is proven",
}
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def fold_gains_png(verdict: Verdict) -> bytes:
    """Draw the gain of each fold and of all, with bounds, against what is required.

    Whiskers reach from the one-sided lower to the one-sided upper bound at the gate's alpha.
    Gains that could not be computed are written, not drawn.
    """
    names = [f"fold {fold.fold_id}\n{fold.num_rows} rows" for fold in verdict.folds]
    names.append(f"all folds\n{verdict.num_rows} rows")
    gains = [(fold.gain, fold.low, fold.high) for fold in verdict.folds]
    gains.append((verdict.gain, verdict.lower_bound, verdict.upper_bound))
    figure, axes = new_figure(height_in=0.9 + 0.42 * len(gains) + 0.5)
    colour = OUTCOME_COLOUR[verdict.outcome]
    for at, (gain, low, high) in enumerate(gains):
        own = colour if at == len(gains) - 1 else MUTED
        if not all(map(math.isfinite, (gain, low, high))):
            axes.text(
                0.02,
                at,
                "not computable",
                color=own,
                va="center",
                transform=axes.get_yaxis_transform(),
            )
            continue
        width = 3.2 if own == colour else 1.8
        axes.plot([low, high], [at, at], color=own, linewidth=width, solid_capstyle="butt")
        axes.plot([gain], [at], "o", color=own, markersize=8 if own == colour else 6)
    axes.axhline(len(gains) - 1.5, color=GRID, linewidth=1)
    axes.axvline(0, color=INK, linewidth=1, label="no gain")
    if verdict.required != 0:
        axes.axvline(
            verdict.required, color=INK, linewidth=1, linestyle=(0, (4, 3)), label="required"
        )
    axes.set_yticks(range(len(gains)), names)
    axes.set_ylim(len(gains) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"gain: loss of the reference less loss of the candidate [{verdict.unit}]")
    confidence = 100 * (1 - verdict.alpha)
    set_headline(
        axes,
        OUTCOME_WORDS[verdict.outcome],
        f"gain {verdict.gain:.3g}, {confidence:.3g} % lower bound {verdict.lower_bound:.3g}, "
        f"required > {verdict.required:.3g}",
        colour=colour,
    )
    if verdict.required != 0:
        axes.legend(loc="best", frameon=False, fontsize=8.5)
    return as_png(figure)


def training_curves_png(curves: pd.DataFrame, *, unit: str = "loss units") -> bytes:
    """Draw training and validation loss per epoch: one panel a fold, one thin line a seed.

    Args:
        curves: Columns seed, fold_id, epoch, train_loss, val_loss; one line per epoch.
        unit: Unit of the losses.
    """
    folds = sorted(curves["fold_id"].unique())
    columns = min(4, len(folds))
    rows = math.ceil(len(folds) / columns)
    figure = _blank(height_in=0.9 + 1.9 * rows)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).reshape(-1)
    for panel, fold in zip(panels, folds, strict=False):
        _style(panel)
        for _, line in curves[curves["fold_id"] == fold].sort_values("epoch").groupby("seed"):
            for column, colour in (("train_loss", TRAIN), ("val_loss", VALIDATION)):
                panel.plot(line["epoch"], line[column], color=colour, linewidth=0.9, alpha=0.85)
        panel.set_title(f"fold {fold}", fontsize=9, color=INK, loc="left")
    for panel in panels[len(folds) :]:
        panel.set_visible(False)
    seeds = curves["seed"].nunique()
    figure.suptitle(
        f"Loss per epoch, {seeds} seeds: training (grey) and validation (blue)",
        fontsize=10.5,
        fontweight="bold",
        color=INK,
        x=0.01,
        ha="left",
    )
    figure.supxlabel("epoch", fontsize=9, color=INK)
    figure.supylabel(f"loss [{unit}]", fontsize=9, color=INK)
    return as_png(figure)


def loss_over_time_png(
    candidate: LossTable, reference: LossTable, *, unit: str = "loss units"
) -> bytes:
    """Draw the cumulative gain over the test rows, fold by fold in the order of their labels.

    A line that rises steadily is a gain earned everywhere; a single step is a few lucky rows. Rows
    labelled by dates are in time; other labels (a key, a number) are not shown.

    Raises:
        ContractError: The tables hold different rows.
    """
    reference = reference.aligned_to(candidate)
    gain_N = mean_gain(Arm.of(candidate), Arm.of(reference))
    # By fold, in time inside each: the order a table's rows have by contract.
    order_N = np.argsort(candidate.fold_N, kind="stable")
    total_N = np.cumsum(gain_N[order_N])
    fold_N, label_N = candidate.fold_N[order_N], candidate.label_N[order_N]
    in_time = bool(_DATE.match(label_N[0]))
    figure, axes = new_figure(height_in=2.9)
    axes.plot(np.arange(1, total_N.size + 1), total_N, color=VALIDATION, linewidth=1.4)
    axes.axhline(0, color=INK, linewidth=1)
    starts = [0, *(np.flatnonzero(np.diff(fold_N)) + 1)]
    for start in starts:
        if start:
            axes.axvline(start + 0.5, color=MUTED, linewidth=0.8, linestyle=(0, (2, 3)))
        axes.text(
            start + 1,
            1.0,
            f" fold {fold_N[start]}\n {label_N[start][:10] if in_time else ''}",
            transform=axes.get_xaxis_transform(),
            fontsize=7.5,
            color=MUTED,
            va="top",
        )
    if not np.isfinite(total_N).all():
        axes.text(0.5, 0.5, "losses that are not finite", transform=axes.transAxes, ha="center")
    axes.set_xlim(0, total_N.size)
    axes.margins(y=0.2)
    axes.set_xlabel("test row, in time" if in_time else "test row")
    axes.set_ylabel(f"cumulative gain [{unit}]")
    set_headline(axes, "Gain over the test rows: above zero the candidate is ahead", "", colour=INK)
    return as_png(figure)
