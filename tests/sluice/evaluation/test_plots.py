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
from tests.sluice.evaluation.loss_samples import table, two_recipes

LARGEST_BYTES = 40_000


def colours(png: bytes) -> np.ndarray:
    """Pixels (height, width, 3) of a picture that is small and drawn at full width."""
    assert len(png) < LARGEST_BYTES
    with Image.open(io.BytesIO(png)) as image:
        assert image.format == "PNG"
        assert image.width == 792
        return np.asarray(image.convert("RGB")).astype(int)


def share_of(pixels: np.ndarray, colour: tuple[int, int, int]) -> float:
    return float((np.abs(pixels - colour).sum(axis=2) < 30).mean())


def arms(gain: float):
    return two_recipes(np.random.default_rng(6), rho=0.5, gain=gain)


def verdict(gain: float, **settings):
    return compare(*arms(gain), GateSettings(**settings), horizon_rows=1, unit="nats")


@pytest.mark.parametrize(("gain", "is_green"), [(0.3, True), (-0.3, False)])
def test_the_colour_of_the_pooled_gain_is_the_outcomes(gain, is_green):
    pixels = colours(fold_gains_png(verdict(gain, min_gain=0.05)))

    green, red = share_of(pixels, (26, 127, 75)), share_of(pixels, (186, 37, 37))
    assert (green > 0.003, red > 0.003) == (is_green, not is_green)


def test_a_verdict_without_numbers_is_still_a_picture():
    candidate, reference = arms(0.3)
    loss_SN = candidate.loss_SN.copy()
    loss_SN[0, 5] = np.nan
    broken = table(loss_SN, "candidate", num_folds=4)
    bad = compare(broken, reference, GateSettings(), horizon_rows=1)

    pixels = colours(fold_gains_png(bad))

    assert share_of(pixels, (183, 121, 31)) > 0.003
    colours(loss_over_time_png(broken, reference))


def test_the_same_verdict_is_the_same_picture():
    assert fold_gains_png(verdict(0.3)) == fold_gains_png(verdict(0.3))


@pytest.mark.parametrize("num_folds", [1, 4, 6])
def test_training_curves_show_every_fold(num_folds):
    rng = np.random.default_rng(0)
    lines = [
        (seed, fold, epoch, 1 / epoch, 1 / epoch + 0.1 * rng.random())
        for seed in range(5)
        for fold in range(num_folds)
        for epoch in range(1, 26)
    ]
    columns = ["seed", "fold_id", "epoch", "train_loss", "val_loss"]
    curves = pd.DataFrame(lines, columns=columns)

    pixels = colours(training_curves_png(curves))

    assert share_of(pixels, (9, 103, 210)) > 0.002


def test_the_gain_over_time_needs_the_same_rows():
    candidate, reference = arms(0.3)
    fewer = table(reference.loss_SN[:, :-1], "reference", num_folds=4)

    colours(loss_over_time_png(candidate, reference))
    with pytest.raises(ContractError, match="same \\(fold, row\\)"):
        loss_over_time_png(candidate, fewer)


@pytest.mark.slow
def test_importing_loads_no_plotting_and_drawing_touches_no_global_state():
    script = (
        "import sys, pandas as pd\n"
        "from sluice.evaluation import plots\n"
        "assert 'matplotlib' not in sys.modules and 'scipy.stats' not in sys.modules\n"
        "row = dict(seed=0, fold_id=0, epoch=1, train_loss=1.0, val_loss=1.0)\n"
        "plots.training_curves_png(pd.DataFrame([row]))\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
