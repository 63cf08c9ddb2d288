"""Latency drift (ROLL-3): only a relevant increase of the p95 latency is drift."""

import numpy as np
import pytest

from sluice.base.errors import ContractError
from sluice.config.drift_settings import DriftSettings
from sluice.drift.latency import evaluate_latency

SETTINGS = DriftSettings()


def make_latencies(seed: int, num: int = 500, factor: float = 1.0) -> np.ndarray:
    return factor * 0.01 * np.exp(0.3 * np.random.default_rng(seed).normal(size=num))


@pytest.mark.parametrize(
    ("factor", "verdict"), [(2.0, "DRIFT"), (1.0, "STABLE"), (0.3, "STABLE"), (1.2, "STABLE")]
)
def test_only_an_increase_above_the_allowed_one_is_drift(factor, verdict):
    report = evaluate_latency(
        make_latencies(0), make_latencies(1, factor=factor), SETTINGS, window="w", seed=0
    )

    assert report.verdict == verdict
    assert report.ratio == pytest.approx(factor, rel=0.15)
    assert report.lower_ratio < report.ratio
    expected_p95_s = 0.01 * np.exp(0.3 * 1.645)  # closed form for a log-normal
    assert report.reference_p95_s == pytest.approx(expected_p95_s, rel=0.1)


def test_an_increase_of_the_slowest_tenth_is_detected():
    slow = make_latencies(1)
    slow[::10] *= 5

    assert (
        evaluate_latency(make_latencies(0), slow, SETTINGS, window="w", seed=0).verdict == "DRIFT"
    )


def test_the_false_alarm_rate_on_dependent_latencies_is_at_most_alpha():
    strict = DriftSettings(max_latency_increase=0.0)
    num_drifted = 0
    for seed in range(40):
        x = np.random.default_rng(seed).normal(size=600)
        for row in range(1, x.size):  # autocorrelated rows
            x[row] = 0.7 * x[row - 1] + 0.7 * x[row]
        x = np.exp(0.3 * x)
        report = evaluate_latency(x[:300], x[300:], strict, window="w", seed=seed)
        num_drifted += report.verdict == "DRIFT"

    assert num_drifted <= 4  # at 3 %, five or more of 40 have a probability of 1 in 150


def test_too_few_requests_are_inconclusive():
    report = evaluate_latency(
        make_latencies(0), make_latencies(1, num=60), SETTINGS, window="w", seed=0
    )

    assert report.verdict == "INCONCLUSIVE"
    assert "the window has 60 requests, required 100" in report.reason


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_invalid_latencies_are_rejected(value):
    window = make_latencies(1)
    window[3] = value

    with pytest.raises(ContractError, match="1 invalid"):
        evaluate_latency(make_latencies(0), window, SETTINGS, window="w", seed=0)
