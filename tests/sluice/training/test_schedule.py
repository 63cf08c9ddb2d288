"""TRACE-11: warmup and decay of the learning rate, exact at the boundary steps."""

import math

import pytest

from sluice.training.schedule import learning_rate_at
from sluice.training.settings import TrainSettings


def compute_rates(total: int, **changes) -> list[float]:
    options = {"learning_rate": 1.0, "warmup_share": 0.2, "final_rate_share": 0.1, **changes}
    settings = TrainSettings(**options)
    return [learning_rate_at(step, total, settings) for step in range(total)]


def test_warmup_and_cosine_decay_match_known_values():
    """Of 20 steps 4 are warmup in fifths of the peak, then half a cosine over 15 intervals."""
    learning_rates = compute_rates(20)

    assert learning_rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    middle = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * 6 / 15))
    assert learning_rates[10] == pytest.approx(middle)


@pytest.mark.parametrize("total", [1, 2, 3, 7, 100, 1001])
@pytest.mark.parametrize("warmup", [0.0, 0.05, 0.5, 0.99])
@pytest.mark.parametrize("final", [0.0, 0.05, 1.0])
def test_first_peak_and_last_learning_rate_are_exact(total, warmup, final):
    learning_rates = compute_rates(
        total, learning_rate=2e-3, warmup_share=warmup, final_rate_share=final
    )
    peak = min(round(warmup * total), total - 1)

    assert learning_rates[0] > 0
    assert learning_rates[peak] == max(learning_rates) == 2e-3
    assert learning_rates[-1] == (2e-3 * final if total - 1 > peak else 2e-3)
    assert learning_rates[: peak + 1] == sorted(learning_rates[: peak + 1])
    assert learning_rates[peak:] == sorted(learning_rates[peak:], reverse=True)


def test_schedule_can_be_constant():
    assert set(compute_rates(50, warmup_share=0.0, final_rate_share=1.0)) == {1.0}
