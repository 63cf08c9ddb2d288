"""Common style of all figures, which are drawn on matplotlib's Agg canvas without global state."""

import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


INK, MUTED, GRID = "#1f2933", "#7b8794", "#e4e7eb"
TRAIN, VALIDATION = "#9fb3c8", "#0967d2"
WIDTH_IN = 7.2
"""Width of a figure [inches]."""
DPI = 110
"""Resolution of a figure [dots per inch]."""
NUM_COLOURS = 64
"""Default number of colours of a stored figure."""


def empty_figure(*, height_in: float) -> "Figure":
    """Return a figure of the common width without axes."""
    # Imported here, because importing matplotlib takes 0.5 s, and Dagster imports every module.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, height_in), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def new_figure(*, height_in: float) -> "tuple[Figure, Axes]":
    """Return an empty figure with the common width and style."""
    figure = empty_figure(height_in=height_in)
    axes = figure.add_subplot()
    apply_style(axes)
    return figure, axes


def new_stacked_axes(num_rows: int, *, height_in: float) -> "tuple[Figure, list[Axes]]":
    """Return an empty figure with stacked axes that share the x axis."""
    figure = empty_figure(height_in=height_in)
    stacked_axes = [figure.add_subplot(num_rows, 1, 1)]
    stacked_axes += [
        figure.add_subplot(num_rows, 1, number, sharex=stacked_axes[0])
        for number in range(2, num_rows + 1)
    ]
    for axes in stacked_axes:
        apply_style(axes)
    for axes in stacked_axes[:-1]:
        axes.tick_params(labelbottom=False)
    return figure, stacked_axes


def apply_style(axes: "Axes") -> None:
    """Apply the common style to axes."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(GRID)
    axes.tick_params(colors=INK, labelsize=8.5, length=0)
    axes.grid(visible=True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.xaxis.label.set(color=INK, fontsize=9)
    axes.yaxis.label.set(color=INK, fontsize=9)


def set_headline(axes: "Axes", headline: str, detail: str, *, colour: str) -> None:
    """Set the headline and the detail line above the axes."""
    axes.set_title(
        headline,
        loc="left",
        color=colour,
        fontsize=10.5,
        fontweight="bold",
        pad=20 if detail else 6,
    )
    axes.text(0, 1.02, detail, transform=axes.transAxes, color=INK, fontsize=8.5, va="bottom")


def as_png(figure: "Figure", *, num_colours: int = NUM_COLOURS) -> bytes:
    """Return the figure as a small PNG with a palette of colours.

    Args:
        figure: The figure.
        num_colours: Number of colours. If it is too small, colours that cover only a few pixels
            are lost.
    """
    # A palette reduces the size of full-colour PNGs to a third, which matters because figures in
    # metadata are stored in a database. Pillow is a dependency of matplotlib.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    # `Figure.savefig` draws a figure with constrained layout twice, which doubles the time.
    canvas: Any = FigureCanvasAgg(figure)  # its methods have no types
    canvas.draw()
    height, width, _ = canvas.buffer_rgba().shape
    image = Image.frombuffer("RGBA", (width, height), canvas.buffer_rgba(), "raw", "RGBA", 0, 1)
    png = io.BytesIO()
    image.convert("RGB").quantize(num_colours).save(png, format="png", optimize=True)
    return png.getvalue()
