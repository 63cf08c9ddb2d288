"""POC-9, PRED-1, PRED-2: collapse, explosion and number of distinct predictions."""

import math

import numpy as np
import pytest
import torch

from sluice.config.poc_settings import PocSettings, PredictionSettings
from sluice.failfast.learning.predictions import check_predictions, prediction_spread

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


@pytest.mark.parametrize(("scale", "is_wide"), [(1.0, False), (33.0, True)])
def test_a_spread_above_that_of_the_targets_states_the_limit(scale: float, is_wide: bool) -> None:
    finding = check_predictions((Y - Y.mean()) * scale, Y, PocSettings())

    assert finding.outcome == "pass"
    assert ("more than the targets (at most 100 is allowed)" in finding.summary) == is_wide


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_one_non_finite_prediction_is_reported(value: float) -> None:
    output = Y.clone()
    output[3] = value

    assert prediction_spread(output, Y, SETTINGS).problem == "not finite"


def test_constant_targets_are_reported_as_collapse() -> None:
    assert prediction_spread(Y, torch.ones_like(Y), SETTINGS).problem == "collapse"


def test_logits_against_classes_only_collapse_when_constant() -> None:
    logits, classes = torch.randn(50, 3), torch.zeros(50, dtype=torch.long)

    assert prediction_spread(logits, classes, SETTINGS).problem == ""
    assert prediction_spread(torch.ones(50, 3), classes, SETTINGS).problem == "collapse"


def check(output, y, **limits):
    return check_predictions(output, y, PocSettings(predictions=PredictionSettings(**limits)))


@pytest.mark.parametrize(
    ("output", "outcome", "fault"),
    [
        (Y + 1, "pass", None),
        (200 - Y, "pass", None),
        ((Y - 100) * 0.001, "fail", "collapse"),
        (torch.ones_like(Y), "fail", "collapse"),
        ((Y - 100) * 200, "fail", "explosion"),
        (Y.round(decimals=-1), "warn", "few distinct predictions"),
    ],
    ids=["sound", "negative", "nearly constant", "constant", "exploded", "rounded"],
)
def test_thresholds_on_predictions_hold_in_any_unit(output, outcome, fault):
    """PRED-1 and PRED-2, for any unit of targets and predictions."""
    for unit in (1.0, 1e-9, 1e9):
        finding = check(output.double() * unit, Y.double() * unit)
        assert (finding.outcome, finding.fault) == (outcome, fault), finding


def test_the_correlation_equals_that_of_numpy():
    output = Y + 5 * torch.randn(500, 1, generator=torch.Generator().manual_seed(1))

    correlation = check(output, Y).numbers["correlation"]

    assert correlation == pytest.approx(np.corrcoef(output.flatten(), Y.flatten())[0, 1], rel=1e-4)
    assert check(200 - Y, Y).numbers["correlation"] == pytest.approx(-1)


def test_an_undefined_correlation_counts_as_zero_and_warns():
    """Each of two outputs is undefined: its predictions or its targets are constant."""
    varying, constant = Y, torch.ones_like(Y)

    finding = check(torch.hstack([varying, constant]), torch.hstack([constant, varying]))

    assert finding.outcome == "warn"
    assert finding.numbers["correlation"] == 0


def test_constant_targets_never_pass():
    assert check(Y, torch.ones_like(Y)).outcome == "warn"
    assert check(torch.ones_like(Y), torch.ones_like(Y)).outcome == "fail"
    assert check(torch.randn(50, 3), torch.zeros(50, dtype=torch.long)).outcome == "warn"


def test_a_non_finite_prediction_fails_with_its_position():
    output = Y.clone()
    output[3] = math.inf

    finding = check(output, Y)

    assert (finding.outcome, finding.fault) == ("fail", "non-finite output")
    assert "example 3 of 500" in finding.summary


def test_class_scores_are_judged_as_probabilities():
    classes = torch.arange(300) % 3
    scores = torch.nn.functional.one_hot(classes, 3) * 2.0 + 0.1 * torch.randn(
        300, 3, generator=torch.Generator().manual_seed(0)
    )
    level = torch.tensor([5.0, -5.0, 0.0])

    assert check(scores, classes).outcome == "pass"
    assert check(scores, classes).numbers["correlation"] > 0.9
    assert check(level + 1e-3 * scores, classes).fault == "collapse"
    assert check(level.expand(300, 3), classes).fault == "collapse"
    assert check(10 * level + scores, classes).fault == "collapse"
    exploded = check(1000 * scores, classes)
    assert exploded.fault == "explosion"
    assert "300 class scores vary by 9" in exploded.summary
    assert "nats; at most 100 is allowed" in exploded.summary


def test_outputs_of_another_shape_only_fail_when_constant():
    output = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))

    finding = check(output, Y[:100])

    assert finding.outcome == "pass"
    assert "correlation" not in finding.numbers
    constant = check(torch.zeros(100, 2), Y[:100])
    assert constant.fault == "collapse"
    assert constant.summary.endswith("they are all equal.")


def test_few_examples_do_not_count_as_few_distinct_predictions():
    assert check(Y[:5], Y[:5]).outcome == "pass"
    assert check(Y[:1], Y[:1]).outcome == "insufficient"
    assert check(Y[:20], Y[:20], min_distinct=21).outcome == "pass"


def test_predictions_for_few_distinct_inputs_may_be_few():
    output = torch.tensor([0.4, 0.6]).repeat(50)[:, None]
    y = output + 0.5 * torch.randn(100, 1, generator=torch.Generator().manual_seed(0))

    def outcome(num_distinct_inputs):
        return check_predictions(
            output, y, PocSettings(), num_distinct_inputs=num_distinct_inputs
        ).outcome

    assert [outcome(number) for number in (None, 3, 2)] == ["warn", "warn", "pass"]
