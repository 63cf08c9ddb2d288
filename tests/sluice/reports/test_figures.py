"""Rendering of figures as small PNG images."""

import io

import pytest
from PIL import Image

from sluice.reports.figures import INK, as_png, new_figure, new_stacked_axes, set_headline


def make_figure_with_one_axes():
    figure, axes = new_figure(height_in=2.5)
    axes.plot([0, 1, 2], [3.0, 1.0, 2.0], label="loss")
    axes.legend()
    set_headline(axes, "The loss falls", "5 seeds", colour=INK)
    return figure


def make_figure_with_two_rows():
    figure, rows = new_stacked_axes(2, height_in=4.0)
    for axes, label in zip(rows, ("short", "a longer label"), strict=True):
        axes.plot([0, 1, 2], [300.0, 1.0, 2.0])
        axes.set_ylabel(label)
    return figure


@pytest.mark.parametrize("make_figure", [make_figure_with_one_axes, make_figure_with_two_rows])
def test_png_has_the_same_pixels_as_savefig(make_figure):
    """The reference is matplotlib's savefig, which draws a figure twice."""
    png = io.BytesIO()
    make_figure().savefig(png, format="png")
    expected = Image.open(png).convert("RGB").quantize(64)

    image = Image.open(io.BytesIO(as_png(make_figure())))

    assert image.mode == "P"
    assert image.convert("RGB").tobytes() == expected.convert("RGB").tobytes()
