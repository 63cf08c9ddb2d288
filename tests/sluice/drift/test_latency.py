"""Latency drift (ROLL-3): slower is found, faster and a rise that does not matter are not."""

import numpy as np
import pytest

from sluice.base.errors import ContractError
from sluice.config.drift_settings import DriftSettings
from sluice.drift.latency import evaluate_latency

SETTINGS = DriftSettings()


def seconds(seed: int, num: int = 500, times: float = 1.0) -> np.ndarray:
    return times * 0.01 * np.exp(0.3 * np.random.default_rng(seed).normal(size=num))


@pytest.mark.parametrize(
    ("times", "verdict"), [(2.0, "DRIFT"), (1.0, "STABLE"), (0.3, "STABLE"), (1.2, "STABLE")]
)
def test_only_a_rise_that_matters_is_drift(times, verdict):
    report = evaluate_latency(seconds(0), seconds(1, times=times), SETTINGS, window="w", seed=0)

    assert report.verdict == verdict
    assert report.ratio == pytest.approx(times, rel=0.15)
    assert report.lower_ratio < report.ratio
    truth = 0.01 * np.exp(0.3 * 1.645)  # of a log-normal, in closed form
    assert report.reference_p95_s == pytest.approx(truth, rel=0.1)


def test_an_increase_of_the_slowest_tenth_is_detected():
    slow = seconds(1)
    slow[::10] *= 5

    assert evaluate_latency(seconds(0), slow, SETTINGS, window="w", seed=0).verdict == "DRIFT"


def test_alarms_without_a_rise_are_at_most_alpha():
    strict = DriftSettings(max_latency_increase=0.0)
    found = 0
    for seed in range(40):
        x = np.random.default_rng(seed).normal(size=600)
        for at in range(1, x.size):  # rows that depend on each other
            x[at] = 0.7 * x[at - 1] + 0.7 * x[at]
        x = np.exp(0.3 * x)
        report = evaluate_latency(x[:300], x[300:], strict, window="w", seed=seed)
        found += report.verdict == "DRIFT"

    assert found <= 4  # at 3 %, five or more of 40 have a chance of 1 in 150


def test_too_few_requests_decide_nothing():
    report = evaluate_latency(seconds(0), seconds(1, num=60), SETTINGS, window="w", seed=0)

    assert report.verdict == "INCONCLUSIVE"
    assert "the window has 60 requests, required 100" in report.reason


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_invalid_latencies_are_rejected(bad):
    window = seconds(1)
    window[3] = bad

    with pytest.raises(ContractError, match="1 invalid"):
        evaluate_latency(seconds(0), window, SETTINGS, window="w", seed=0)
