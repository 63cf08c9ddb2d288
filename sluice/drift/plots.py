"""Plots of a drift report: an overview of all columns, and the change of each drifted column.

Each function returns the bytes of a PNG. Shape legend: G = cells, Q = quantiles, A = reference and
window.
"""

import math

import numpy as np
from numpy.typing import NDArray

from sluice.base.pluralize import pluralize
from sluice.drift.binning import CategoryCells, NumericCells
from sluice.drift.columns import ColumnReference
from sluice.drift.report import ColumnResult, DriftReport, StatisticResult
from sluice.reports.figures import GRID, INK, MUTED, VALIDATION, as_png, new_figure, set_headline

DRIFT_COLOUR = "#ba2525"
"""Colour of a column or quantity that has drifted."""
_MAX_COLUMNS, _MAX_CATEGORIES = 25, 10
"""Maximum number of bars in the overview, and of categories in the plot of a column."""
_MAX_BAR_RATIO = 6.0
"""Maximum length of a bar; longer bars are cut off and labelled [multiples of the threshold]."""


def overview_png(report: DriftReport) -> bytes:
    """Plot the largest ratio of distance to threshold of each column, in descending order."""
    tested_columns = [column for column in report.columns if column.statistics]
    tested_columns.sort(key=lambda column: -_threshold_ratio(column.statistics))
    top_columns = tested_columns[:_MAX_COLUMNS]
    entries = [
        (column.column, _threshold_ratio(column.statistics), column) for column in top_columns
    ]
    figure, axes = new_figure(height_in=1.35 + 0.24 * max(1, len(entries)))
    for y, (_, ratio, column) in enumerate(entries):
        colour = DRIFT_COLOUR if column.verdict == "DRIFT" else MUTED
        axes.barh(y, min(ratio, _MAX_BAR_RATIO), color=colour, height=0.7)
        if ratio > _MAX_BAR_RATIO:
            label = f"{ratio:.0f} " if math.isfinite(ratio) else "threshold is 0 "
            axes.text(_MAX_BAR_RATIO, y, label, color="white", va="center", ha="right", fontsize=8)
    axes.axvline(1, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_yticks(range(len(entries)), [_short_label(name) for name, *_ in entries])
    axes.set_ylim(max(1, len(entries)) - 0.4, -0.6)
    max_ratio = max((ratio for _, ratio, _ in entries), default=1.0)
    axes.set_xlim(0, max(1.5, min(1.05 * max_ratio, _MAX_BAR_RATIO)))
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(
        "largest ratio of a distance to its threshold\n(without drift, a single distance exceeds "
        f"its threshold in {100 * report.alpha:.3g} % of windows)"
    )
    num_hidden = len(tested_columns) - len(top_columns)
    detail = "red: drift, after correction for all tests; line: distance = threshold"
    headline = f"{len(report.drifted_columns)} of {len(report.columns)} columns drifted"
    set_headline(
        axes,
        headline,
        detail + (f"; {pluralize(num_hidden, 'column')} not shown" if num_hidden else ""),
        colour=INK,
    )
    return as_png(figure)


def column_png(result: ColumnResult, column: ColumnReference) -> bytes:
    """Plot the change of one column: its quantiles, or the shares of its categories."""
    if isinstance(column.cells, NumericCells):
        return _quantiles_png(result, column, column.cells)
    return _categories_png(result, column, column.cells)


def two_windows_png(
    reference_N: NDArray[np.float64],
    window_N: NDArray[np.float64],
    *,
    headline: str,
    unit: str,
    has_drifted: bool,
) -> bytes:
    """Plot the quantiles of one quantity in the reference and in the window."""
    figure, axes = new_figure(height_in=3.4)
    level_Q = np.linspace(0.01, 0.99, 99)
    colour = DRIFT_COLOUR if has_drifted else VALIDATION
    reference_Q, window_Q = np.quantile(reference_N, level_Q), np.quantile(window_N, level_Q)
    axes.plot(100 * level_Q, reference_Q, color=MUTED, linewidth=2.2, label="reference")
    axes.plot(100 * level_Q, window_Q, color=colour, linewidth=2.2, label="window")
    axes.fill_between(100 * level_Q, reference_Q, window_Q, color=colour, alpha=0.12, linewidth=0)
    axes.legend(loc="best", frameon=False, fontsize=8.5)
    axes.set_xlim(0, 100)
    axes.set_xlabel("quantile level [%]")
    axes.set_ylabel(unit.replace("$", r"\$"))
    set_headline(axes, headline, "", colour=INK)
    return as_png(figure)


def quantiles(
    share_G: NDArray[np.float64], edges: NDArray[np.float64], level_Q: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return quantiles (Q,) from cell shares, by linear interpolation inside each cell."""
    share_below = np.cumsum(share_G)[:-1]
    # With empty cells, several edges have the same level; the last of these edges is the quantile.
    is_last_at_level = np.concatenate((share_below[1:] > share_below[:-1], [True]))
    return np.interp(level_Q, share_below[is_last_at_level], edges[is_last_at_level])


def _quantiles_png(result: ColumnResult, column: ColumnReference, cells: NumericCells) -> bytes:
    figure, axes = new_figure(height_in=3.4)
    level_Q = np.linspace(0.01, 0.99, 99)
    reference_Q = quantiles(column.share_G, cells.edges, level_Q)
    window_Q = quantiles(np.array(result.share), cells.edges, level_Q)
    axes.plot(100 * level_Q, reference_Q, color=MUTED, linewidth=2.2, label="reference")
    axes.plot(100 * level_Q, window_Q, color=_colour(result), linewidth=2.2, label="window")
    axes.fill_between(
        100 * level_Q, reference_Q, window_Q, color=_colour(result), alpha=0.12, linewidth=0
    )
    axes.legend(loc="best", frameon=False, fontsize=8.5)
    axes.set_xlim(0, 100)
    axes.set_xlabel("quantile level [%]")
    axes.set_ylabel(_short_label(result.column))
    set_headline(axes, _headline(result), "", colour=INK)
    return as_png(figure)


def _categories_png(result: ColumnResult, column: ColumnReference, cells: CategoryCells) -> bytes:
    names = [*cells.categories[: cells.num_frequent], "rare categories", "new categories"]
    share_GA = np.stack((column.share_G, np.array(result.share)), axis=1)
    filled_cells = [i for i in range(len(names)) if share_GA[i].any()]
    cells_by_change = sorted(filled_cells, key=lambda i: -abs(share_GA[i, 1] - share_GA[i, 0]))
    top_cells = cells_by_change[:_MAX_CATEGORIES]
    figure, axes = new_figure(height_in=3.4)
    positions = np.arange(len(top_cells))
    axes.barh(
        positions - 0.19, 100 * share_GA[top_cells, 0], height=0.36, color=MUTED, label="reference"
    )
    axes.barh(
        positions + 0.19,
        100 * share_GA[top_cells, 1],
        height=0.36,
        color=_colour(result),
        label="window",
    )
    axes.set_yticks(positions, [_short_label(names[i]) for i in top_cells])
    axes.set_ylim(len(top_cells) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.legend(loc="best", frameon=False, fontsize=8.5)
    axes.set_xlabel("share of the non-missing values [%]")
    set_headline(axes, _headline(result), "", colour=INK)
    axes.spines["bottom"].set_color(GRID)
    return as_png(figure)


def _threshold_ratio(statistics: tuple[StatisticResult, ...]) -> float:
    return max(
        s.distance / s.threshold if s.threshold > 0 else math.inf if s.distance > 0 else 0.0
        for s in statistics
    )


def _headline(result: ColumnResult) -> str:
    unit = "Wasserstein distance" if result.kind == "numeric" else "Cohen's w"
    size = f": {unit} {result.effect:.2g}" if math.isfinite(result.effect) else ""
    return f"{_short_label(result.column)}{size}"


def _colour(result: ColumnResult) -> str:
    return DRIFT_COLOUR if result.verdict == "DRIFT" else VALIDATION


def _short_label(name: str) -> str:
    # Escape dollar signs, which matplotlib interprets as math text.
    short_name = name if len(name) <= 28 else f"{name[:25]}..."
    return short_name.replace("$", r"\$")
