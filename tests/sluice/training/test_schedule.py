"""TRACE-11: warmup, decay, and their boundary steps hit exactly."""

import math

import pytest

from sluice.training.schedule import learning_rate_at
from sluice.training.settings import TrainSettings


def rates(total: int, **changes) -> list[float]:
    options = {"learning_rate": 1.0, "warmup_share": 0.2, "final_rate_share": 0.1, **changes}
    settings = TrainSettings(**options)
    return [learning_rate_at(step, total, settings) for step in range(total)]


def test_known_answer():
    """20 steps, 4 of warmup: fifths of the peak, then half a cosine over 15 intervals."""
    got = rates(20)

    assert got[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    middle = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * 6 / 15))
    assert got[10] == pytest.approx(middle)


@pytest.mark.parametrize("total", [1, 2, 3, 7, 100, 1001])
@pytest.mark.parametrize("warmup", [0.0, 0.05, 0.5, 0.99])
@pytest.mark.parametrize("final", [0.0, 0.05, 1.0])
def test_boundaries_are_exact(total, warmup, final):
    got = rates(total, learning_rate=2e-3, warmup_share=warmup, final_rate_share=final)
    peak = min(round(warmup * total), total - 1)

    assert got[0] > 0
    assert got[peak] == max(got) == 2e-3
    assert got[-1] == (2e-3 * final if total - 1 > peak else 2e-3)
    assert got[: peak + 1] == sorted(got[: peak + 1])
    assert got[peak:] == sorted(got[peak:], reverse=True)


def test_a_constant_learning_rate_is_possible():
    assert set(rates(50, warmup_share=0.0, final_rate_share=1.0)) == {1.0}
