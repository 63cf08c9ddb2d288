"""POC-4: the selector, and its defined answer where there is none."""

import random

import pytest

from sluice.base.errors import ContractError
from sluice.workloads.best_epoch import best_epoch

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("planted", range(10, 201, 10))
def test_returns_the_planted_best(planted):
    scores = {epoch: abs(epoch - planted) / 100 + 0.1 for epoch in range(10, 201, 10)}

    assert best_epoch(scores) == planted


@pytest.mark.parametrize(
    ("scores", "chosen"),
    [
        ({1: 0.5, 2: 0.5, 3: 0.7}, 1),
        ({3: 0.5, 2: 0.5, 9: 0.7}, 2),
        ({1: NAN, 2: 0.9, 3: 0.8, 4: NAN}, 3),
        ({1: -INF, 2: 0.9}, 2),
        ({1: INF, 2: 0.9}, 2),
        ({1: -3.0, 2: -4.0}, 2),
    ],
)
def test_known_answers(scores, chosen):
    assert best_epoch(scores) == chosen


def test_shuffled_scores_move_the_choice():
    scores = [abs(epoch - 7) for epoch in range(1, 21)]
    rng = random.Random(0)
    chosen = {
        best_epoch(dict(enumerate(rng.sample(scores, len(scores)), start=1))) for _ in range(50)
    }

    assert len(chosen) > 10


@pytest.mark.parametrize(
    ("scores", "what", "fix"),
    [
        ({}, "no scores at all", "Validate at least one epoch"),
        ({1: NAN, 2: INF}, "2 scores, none finite", "Lower the learning rate"),
    ],
)
def test_nothing_to_choose_from_is_rejected(scores, what, fix):
    with pytest.raises(ContractError, match=what) as raised:
        best_epoch(scores)

    assert raised.value.fix.startswith(fix)
