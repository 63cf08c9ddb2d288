"""Selection of the best epoch by score, and the error without a finite score (POC-4)."""

import random

import pytest

from sluice.base.errors import ContractError
from sluice.workloads.best_epoch import best_epoch

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("best", range(10, 201, 10))
def test_epoch_with_the_lowest_score_is_selected(best):
    scores = {epoch: abs(epoch - best) / 100 + 0.1 for epoch in range(10, 201, 10)}

    assert best_epoch(scores) == best


@pytest.mark.parametrize(
    ("scores", "selected"),
    [
        ({1: 0.5, 2: 0.5, 3: 0.7}, 1),
        ({3: 0.5, 2: 0.5, 9: 0.7}, 2),
        ({1: NAN, 2: 0.9, 3: 0.8, 4: NAN}, 3),
        ({1: -INF, 2: 0.9}, 2),
        ({1: INF, 2: 0.9}, 2),
        ({1: -3.0, 2: -4.0}, 2),
    ],
)
def test_ties_and_non_finite_scores_have_a_defined_selection(scores, selected):
    assert best_epoch(scores) == selected


def test_selection_depends_on_the_scores_and_not_on_the_epoch():
    scores = [abs(epoch - 7) for epoch in range(1, 21)]
    rng = random.Random(0)
    selected = {
        best_epoch(dict(enumerate(rng.sample(scores, len(scores)), start=1))) for _ in range(50)
    }

    assert len(selected) > 10


@pytest.mark.parametrize(
    ("scores", "problem", "fix"),
    [
        ({}, "no scores at all", "Validate at least one epoch"),
        ({1: NAN, 2: INF}, "2 scores, none finite", "Lower the learning rate"),
    ],
)
def test_no_finite_score_is_rejected(scores, problem, fix):
    with pytest.raises(ContractError, match=problem) as caught:
        best_epoch(scores)

    assert caught.value.fix.startswith(fix)
