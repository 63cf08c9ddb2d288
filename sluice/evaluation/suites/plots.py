"""Plots of regression suites: changes by suite, and the losses of all rows of one suite."""

import math
from typing import TYPE_CHECKING

import numpy as np

from sluice.evaluation.suites.result import CHANGES, Change, SuiteResult
from sluice.reports.figures import GRID, INK, MUTED, as_png, new_figure, set_headline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOUR: dict[Change, str] = {
    "fixed": "#1a7f4b",
    "broken": "#ba2525",
    "still wrong": "#b7791f",
    "still right": "#9fb3c8",
}
"""Colour of each change of a row."""
_MAX_NAME_CHARACTERS = 24
"""Maximum length of a suite's name in a plot; a longer name is cut [characters]."""


def changes_png(results: tuple[SuiteResult, ...]) -> bytes:
    """Plot one bar per suite: the shares of fixed, broken, still wrong and still right rows."""
    figure, axes = new_figure(height_in=1.3 + 0.38 * max(1, len(results)))
    for position, result in enumerate(results):
        left = 0.0
        if not result.rows:
            axes.text(0.01, position, "no rows scored", color=MUTED, va="center", fontsize=8.5)
        for change in CHANGES:
            share = result.count(change) / max(1, len(result.rows))
            axes.barh(position, share, left=left, color=COLOUR[change], height=0.62)
            if share > 0.05:
                axes.text(
                    left + share / 2,
                    position,
                    str(result.count(change)),
                    color="white" if change != "still right" else INK,
                    ha="center",
                    va="center",
                    fontsize=8.5,
                )
            left += share
    axes.set_yticks(
        range(len(results)),
        [f"{_shorten(result.name)} v{result.version}" for result in results],
    )
    axes.set_ylim(len(results) - 0.4, -0.6)
    axes.set_xlim(0, 1)
    axes.grid(visible=False)
    axes.set_xlabel("share of the scored rows")
    handles = [axes.plot([], [], "s", color=COLOUR[c], markersize=7)[0] for c in CHANGES]
    figure.legend(handles, CHANGES, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    set_headline(axes, "Changes from the reference to the candidate, by suite", "", colour=INK)
    return as_png(figure)


def rows_png(result: SuiteResult, *, threshold: float | None, unit: str) -> bytes:
    """Plot the losses of reference and candidate for each scored row.

    Below the diagonal the candidate is better. Non-finite losses are counted but not plotted. Axes
    are logarithmic if all losses are positive, because the losses of a suite vary widely.

    Args:
        result: Result of one suite.
        threshold: Loss above which a row is wrong; None for classifiers.
        unit: Unit of the losses.
    """
    figure, axes = new_figure(height_in=4.2)
    finite_rows = [
        row
        for row in result.rows
        if math.isfinite(row.candidate_loss) and math.isfinite(row.reference_loss)
    ]
    losses = [loss for row in finite_rows for loss in (row.reference_loss, row.candidate_loss)]
    is_log = bool(losses) and min(losses) > 0
    if is_log:
        _use_log_scales(axes)
    for change in CHANGES:
        rows = [row for row in finite_rows if row.change == change]
        axes.scatter(
            [row.reference_loss for row in rows],
            [row.candidate_loss for row in rows],
            s=22,
            color=COLOUR[change],
            linewidths=0,
            label=f"{change} ({result.count(change)})",
        )
    if losses:
        diagonal_ends = np.array([min(losses), max(losses)])
        axes.plot(diagonal_ends, diagonal_ends, color=MUTED, linewidth=1)
    # A threshold is omitted if it cannot be drawn: if it is non-finite, or if it is not above 0 and
    # the axes are logarithmic.
    if threshold is not None and not (math.isfinite(threshold) and (threshold > 0 or not is_log)):
        threshold = None
    if threshold is not None:
        for draw_line in (axes.axhline, axes.axvline):
            draw_line(threshold, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.grid(color=GRID)
    axes.set_xlabel(f"loss of the reference [{unit}]")
    axes.set_ylabel(f"loss of the candidate [{unit}]")
    axes.legend(loc="best", frameon=False, fontsize=8.5)
    num_nonfinite = len(result.rows) - len(finite_rows)
    detail = "below the diagonal the candidate is better" + (
        "; dashed: threshold for wrong rows" if threshold is not None else ""
    )
    set_headline(
        axes,
        f"{_shorten(result.name)}: {len(finite_rows)} rows"
        + (f", {num_nonfinite} with non-finite losses" if num_nonfinite else ""),
        detail,
        colour=INK,
    )
    return as_png(figure, num_colours=256)


def _use_log_scales(axes: "Axes") -> None:
    # Imported here, because matplotlib takes half a second and Dagster loads every module.
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter("{x:g}")


def _shorten(name: str) -> str:
    return name if len(name) <= _MAX_NAME_CHARACTERS else f"{name[: _MAX_NAME_CHARACTERS - 3]}..."
