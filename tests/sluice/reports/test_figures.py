"""Figures as small PNGs."""

import io

import pytest
from PIL import Image

from sluice.reports.figures import INK, as_png, new_figure, new_rows, set_headline


def one_axes():
    figure, axes = new_figure(height_in=2.5)
    axes.plot([0, 1, 2], [3.0, 1.0, 2.0], label="loss")
    axes.legend()
    set_headline(axes, "The loss falls", "5 seeds", colour=INK)
    return figure


def two_rows():
    figure, rows = new_rows(2, height_in=4.0)
    for axes, label in zip(rows, ("short", "a longer label"), strict=True):
        axes.plot([0, 1, 2], [300.0, 1.0, 2.0])
        axes.set_ylabel(label)
    return figure


@pytest.mark.parametrize("make", [one_axes, two_rows])
def test_a_png_has_the_pixels_of_savefig(make):
    """Oracle: matplotlib's own way to write a figure, which draws it twice."""
    full = io.BytesIO()
    make().savefig(full, format="png")
    expected = Image.open(full).convert("RGB").quantize(64)

    found = Image.open(io.BytesIO(as_png(make())))

    assert found.mode == "P"
    assert found.convert("RGB").tobytes() == expected.convert("RGB").tobytes()
