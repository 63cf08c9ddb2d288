"""POC-4: a correct selector passes; each wrong one fails."""

import math

import numpy as np
import pytest

from sluice.config.poc_settings import PocSettings
from sluice.failfast.learning.epoch_selector import check_epoch_selector
from sluice.workloads.best_epoch import best_epoch


def select_by_sorting(scores):
    """Independent reference implementation."""
    usable = {epoch: score for epoch, score in scores.items() if abs(score) < math.inf}
    lowest = sorted(usable.values())[0]
    return sorted(epoch for epoch, score in usable.items() if score == lowest)[0]


def select_and_clear_history(scores):
    best = best_epoch(scores)
    scores.clear()
    return best


WRONG_SELECTORS = {
    "last epoch": max,
    "first epoch": min,
    "always 100": lambda _: 100,
    "maximises": lambda scores: max(scores, key=scores.get),
    "does not handle NaN": lambda scores: min(scores, key=scores.get),
    "latest of ties": lambda scores: (
        min((s, -e) for e, s in scores.items() if math.isfinite(s))[1] * -1
    ),
    "position, not epoch": lambda scores: int(np.nanargmin(list(scores.values()))),
    "order of the mapping": lambda scores: list(scores)[
        int(np.nanargmin([scores[e] for e in sorted(scores)]))
    ],
    "smallest absolute score": lambda scores: min(
        (abs(s), e) for e, s in scores.items() if math.isfinite(s)
    )[1],
    "0 for an empty history": lambda scores: best_epoch(scores) if scores else 0,
    "None for an empty history": lambda scores: best_epoch(scores) if scores else None,
    "first epoch when all are NaN": lambda scores: (
        best_epoch(scores)
        if not scores or any(math.isfinite(s) for s in scores.values())
        else min(scores)
    ),
    "NaN counts as 0": lambda scores: best_epoch(
        {e: 0.0 if math.isnan(s) else s for e, s in scores.items()}
    ),
    "raises on NaN": lambda scores: (
        1 / 0 if any(math.isnan(s) for s in scores.values()) else best_epoch(scores)
    ),
    "ignores epochs after 100": lambda scores: best_epoch(
        {e: s for e, s in scores.items() if e <= 100} or scores
    ),
}


@pytest.mark.parametrize("select", [best_epoch, select_by_sorting, select_and_clear_history])
@pytest.mark.parametrize("seed", range(20))
def test_a_correct_selector_passes(select, seed, settings):
    finding = check_epoch_selector(select, settings, seed=seed)

    assert finding.outcome == "pass", finding.summary
    assert finding.numbers["wrong_answers"] == 0


@pytest.mark.parametrize("select", WRONG_SELECTORS.values(), ids=WRONG_SELECTORS.keys())
@pytest.mark.parametrize("seed", range(5))
def test_a_wrong_selector_fails(select, seed, settings):
    finding = check_epoch_selector(select, settings, seed=seed)

    assert finding.outcome == "fail"
    assert finding.fault == "wrong epoch selection"
    assert "is required, got" in finding.summary


def test_wrong_answer_is_reported(settings):
    finding = check_epoch_selector(max, settings, seed=0)

    assert "best score at epoch 10: epoch 10 is required, got epoch 200" in finding.summary


def test_exception_of_the_selector_is_reported(settings):
    finding = check_epoch_selector(WRONG_SELECTORS["raises on NaN"], settings, seed=0)

    assert "is required, got ZeroDivisionError: division by zero" in finding.summary


def test_candidate_epochs_are_every_tenth_up_to_200(settings):
    epochs = set()

    def select(scores):
        epochs.update(scores)
        return best_epoch(scores)

    check_epoch_selector(select, settings, seed=0)

    assert epochs == set(range(10, 201, 10))


def test_two_candidate_epochs_are_sufficient_to_detect_a_wrong_selector():
    settings = PocSettings(selector_first_epoch=1, selector_last_epoch=2, selector_step_epochs=1)

    assert check_epoch_selector(best_epoch, settings, seed=0).outcome == "pass"
    assert check_epoch_selector(max, settings, seed=0).outcome == "fail"
