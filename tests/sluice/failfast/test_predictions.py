"""PRED-1: collapse and explosion, relative to the targets."""

import math

import pytest
import torch

from sluice.failfast.predictions import prediction_spread
from sluice.failfast.settings import PredictionSettings

SETTINGS = PredictionSettings()
Y = torch.randn(500, 1, generator=torch.Generator().manual_seed(0)) * 3 + 100


@pytest.mark.parametrize(
    ("scale", "problem"),
    [(1.0, ""), (0.006, ""), (0.004, "collapse"), (0.0, "collapse"), (99, ""), (101, "explosion")],
)
def test_thresholds_are_relative_to_the_target(scale: float, problem: str) -> None:
    output = (Y - Y.mean()) * scale

    spread = prediction_spread(output, Y, SETTINGS)

    assert spread.problem == problem
    assert spread.ratio == pytest.approx(scale, abs=1e-6)
    assert prediction_spread(output * 1e-5, Y * 1e-5, SETTINGS).problem == problem


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_one_bad_number_is_told(bad: float) -> None:
    output = Y.clone()
    output[3] = bad

    assert prediction_spread(output, Y, SETTINGS).problem == "not finite"


def test_constant_targets_prove_nothing_good() -> None:
    assert prediction_spread(Y, torch.ones_like(Y), SETTINGS).problem == "collapse"


def test_logits_against_classes_only_collapse_when_constant() -> None:
    logits, classes = torch.randn(50, 3), torch.zeros(50, dtype=torch.long)

    assert prediction_spread(logits, classes, SETTINGS).problem == ""
    assert prediction_spread(torch.ones(50, 3), classes, SETTINGS).problem == "collapse"
