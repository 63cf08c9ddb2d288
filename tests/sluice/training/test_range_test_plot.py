"""TRAIN-2: the plot of the range test."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from sluice.training.descent import RangeTestSettings
from sluice.training.range_test import range_test
from sluice.training.range_test_plot import range_test_png
from sluice.training.settings import TrainSettings
from tests.sluice.training.range_samples import Quadratic, examples, output_mean


def make_png(curvature: float, *, sign: float = 1.0) -> bytes:
    model = Quadratic(curvature)
    result = range_test(
        model,
        lambda out, y: sign * output_mean(out, y),
        examples(8),
        RangeTestSettings(),
        training=TrainSettings(clip_norm=1e9),
        seed=0,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
    )
    return range_test_png(result)


def dark_columns(png: bytes) -> np.ndarray:
    """Return the x positions, in pixels, of the vertical line that marks the pick."""
    with Image.open(io.BytesIO(png)) as image:
        assert (image.format, image.width) == ("PNG", 792)
        pixels = np.asarray(image.convert("RGB")).astype(int)
    ink = np.abs(pixels - (31, 41, 51)).sum(axis=2) < 60
    return np.flatnonzero(ink.mean(axis=0) > 0.5)


@pytest.mark.slow
def test_pick_is_drawn_as_a_line_at_its_rate():
    (low, *_), (high, *_) = dark_columns(make_png(1e4)), dark_columns(make_png(1.0))

    assert high > low + 200


@pytest.mark.parametrize(("curvature", "sign"), [(0.0, 1.0), (1e5, -1.0)])
def test_no_pick_is_drawn_without_a_descent(curvature, sign):
    assert dark_columns(make_png(curvature, sign=sign)).size == 0


@pytest.mark.slow
def test_plot_is_reproducible_and_small():
    png = make_png(1.0)

    assert png == make_png(1.0)
    assert len(png) < 40_000
