"""Plot of a learning-rate range test, with the selected rate marked."""

from sluice.reports.figures import INK, MUTED, TRAIN, VALIDATION, as_png, new_figure, set_headline
from sluice.training.range_test import RangeTest

_MARGIN_ABOVE = 0.6
_MARGIN_BELOW = 0.3
"""Space above the initial loss and below the lowest loss, as shares of the decrease between
them."""


def range_test_png(result: RangeTest, *, unit: str = "loss units") -> bytes:
    """Plot the loss over the learning rate, with the steepest and the lowest point marked.

    Args:
        result: Result of the range test.
        unit: Unit of the loss.
    """
    figure, axes = new_figure(height_in=3.2)
    rates = [point.rate for point in result.curve]
    losses = [point.loss for point in result.curve]
    smoothed = {p.rate: p.smoothed for p in result.curve if p.smoothed is not None}
    axes.plot(rates, losses, color=TRAIN, linewidth=0.8, label="loss per batch")
    axes.plot(
        list(smoothed),
        list(smoothed.values()),
        color=VALIDATION,
        linewidth=2,
        label="smoothed loss",
    )
    if result.rate is not None and result.lowest_loss_rate is not None:
        axes.axvline(result.rate, color=INK, linewidth=1.2, label=f"selected {result.rate:.2g}")
        axes.plot([result.rate], [smoothed[result.rate]], "o", color=INK, markersize=7)
        axes.axvline(
            result.lowest_loss_rate,
            color=MUTED,
            linewidth=1,
            linestyle=(0, (4, 3)),
            label=f"lowest loss {result.lowest_loss_rate:.2g}",
        )
        # The y axis ends above the initial loss, because the height of a divergence would hide the
        # descent.
        lowest = smoothed[result.lowest_loss_rate]
        decrease = max(next(iter(smoothed.values())), result.start_loss) - lowest
        axes.set_ylim(lowest - _MARGIN_BELOW * decrease, lowest + (1 + _MARGIN_ABOVE) * decrease)
    axes.set_xscale("log")
    axes.set_xlabel("learning rate")
    axes.set_ylabel(f"loss [{unit}]")
    set_headline(
        axes,
        "No descent found" if result.rate is None else f"Steepest descent at {result.rate:.2g}",
        f"{len(result.curve)} learning rates up to {result.ended_at_rate:.2g} ({result.ended})",
        colour=INK,
    )
    axes.legend(loc="best", frameon=False, fontsize=8.5)
    return as_png(figure)
