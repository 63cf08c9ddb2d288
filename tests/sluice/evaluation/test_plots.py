"""Plots of verdicts, losses and training curves."""

import io
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from sluice.base.errors import ContractError
from sluice.evaluation.comparison import compare
from sluice.evaluation.plots import fold_gains_png, loss_over_time_png, training_curves_png
from sluice.evaluation.settings import GateSettings
from tests.sluice.evaluation.loss_samples import make_losses, simulate_arms

LARGEST_BYTES = 40_000


def read_pixels(png: bytes) -> np.ndarray:
    """Return the pixels (height, width, 3) of a PNG after a check of its size and width."""
    assert len(png) < LARGEST_BYTES
    with Image.open(io.BytesIO(png)) as image:
        assert image.format == "PNG"
        assert image.width == 792
        return np.asarray(image.convert("RGB")).astype(int)


def colour_share(pixels: np.ndarray, colour: tuple[int, int, int]) -> float:
    return float((np.abs(pixels - colour).sum(axis=2) < 30).mean())


def make_arms(gain: float):
    return simulate_arms(np.random.default_rng(6), rho=0.5, gain=gain)


def make_verdict(gain: float, **settings):
    return compare(*make_arms(gain), GateSettings(**settings), horizon_rows=1, unit="nats")


@pytest.mark.parametrize(("gain", "is_green"), [(0.3, True), (-0.3, False)])
def test_the_colour_of_the_pooled_gain_shows_the_outcome(gain, is_green):
    pixels = read_pixels(fold_gains_png(make_verdict(gain, min_gain=0.05)))

    green, red = colour_share(pixels, (26, 127, 75)), colour_share(pixels, (186, 37, 37))
    assert (green > 0.003, red > 0.003) == (is_green, not is_green)


def test_non_finite_losses_are_plotted():
    candidate, reference = make_arms(0.3)
    loss_SN = candidate.loss_SN.copy()
    loss_SN[0, 5] = np.nan
    broken = make_losses(loss_SN, "candidate", num_folds=4)
    verdict = compare(broken, reference, GateSettings(), horizon_rows=1)

    pixels = read_pixels(fold_gains_png(verdict))

    assert colour_share(pixels, (183, 121, 31)) > 0.003
    read_pixels(loss_over_time_png(broken, reference))


def test_the_plot_of_a_verdict_is_deterministic():
    assert fold_gains_png(make_verdict(0.3)) == fold_gains_png(make_verdict(0.3))


@pytest.mark.parametrize("num_folds", [1, 4, 6])
def test_training_curves_are_drawn_for_any_number_of_folds(num_folds):
    rng = np.random.default_rng(0)
    lines = [
        (seed, fold, epoch, 1 / epoch, 1 / epoch + 0.1 * rng.random())
        for seed in range(5)
        for fold in range(num_folds)
        for epoch in range(1, 26)
    ]
    columns = ["seed", "fold_id", "epoch", "train_loss", "val_loss"]
    curves = pd.DataFrame(lines, columns=columns)

    pixels = read_pixels(training_curves_png(curves))

    assert colour_share(pixels, (9, 103, 210)) > 0.002


def test_the_plot_of_losses_over_time_requires_the_same_rows():
    candidate, reference = make_arms(0.3)
    fewer = make_losses(reference.loss_SN[:, :-1], "reference", num_folds=4)

    read_pixels(loss_over_time_png(candidate, reference))
    with pytest.raises(ContractError, match="same \\(fold, row\\)"):
        loss_over_time_png(candidate, fewer)


@pytest.mark.slow
def test_importing_does_not_load_matplotlib_and_drawing_does_not_load_pyplot():
    script = (
        "import sys, pandas as pd\n"
        "from sluice.evaluation import plots\n"
        "assert 'matplotlib' not in sys.modules and 'scipy.stats' not in sys.modules\n"
        "row = dict(seed=0, fold_id=0, epoch=1, train_loss=1.0, val_loss=1.0)\n"
        "plots.training_curves_png(pd.DataFrame([row]))\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
