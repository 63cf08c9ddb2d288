"""Simulated traffic of two arms with a known difference."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np

from sluice.rollout.observations import ArmCounts, TrafficCounts
from sluice.rollout.settings import RolloutStep

START = datetime(2026, 1, 1, tzinfo=UTC)
_P95 = 1.6448536269514722
"""95th percentile of a standard normal variable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Requests of both arms, and the difference of the challenger from ``harm_at_s`` on.

    Response times are lognormal. Both arms may share an autoregressive effect on the log of the
    response time and of the error rate.
    """

    requests_per_s: float = 100.0
    """Mean number of requests per second, of both arms together."""

    error_rate: float = 0.01
    """Mean share of requests that fail, without harm."""

    deadline: float = 3.0
    """Time limit of a response, in standard deviations of the log response time above its mean."""

    error_factor: float = 1.0
    """Factor of the challenger's error rate from ``harm_at_s`` on."""

    slow_factor: float = 1.0
    """Factor of the challenger's share of slow responses from ``harm_at_s`` on. A response is slow
    above the 95th percentile of production."""

    harm_at_s: float = 0.0
    """Time after the start at which the harm begins [s]."""

    wander: float = 0.0
    """Standard deviation of the shared effect: on the log response time, in units of its standard
    deviation; and on the log error rate."""

    wander_s: float = 60.0
    """Time in which the autocorrelation of the shared effect decreases to 1/e [s]."""

    assessment_s: float = 2.0
    """Time between two assessments [s]."""


def late_rate(spreads: float) -> float:
    """Return the share of late responses.

    A response is late if the log of its latency is more than ``spreads`` standard deviations above
    the mean log latency.

    >>> round(late_rate(1.6449), 4)
    0.05
    """
    return 0.5 * math.erfc(spreads / math.sqrt(2))


class Arms:
    """Draws the counts of both arms for successive assessments."""

    def __init__(self, traffic: Traffic, *, rng: np.random.Generator) -> None:
        self._traffic = traffic
        self._rng = rng
        self._shift = float(rng.normal(scale=traffic.wander)) if traffic.wander else 0.0
        self._challenger = self._production = ArmCounts()
        self._since = self.now = START

    def next_step(self) -> None:
        """Begin the next step of the rollout, in which the counts start at 0."""
        self._challenger = self._production = ArmCounts()
        self._since = self.now

    def next_counts(self, step: RolloutStep, *, rollout: str, epoch: int) -> TrafficCounts:
        """Return the counts of the present step up to the next assessment."""
        traffic, rng = self._traffic, self._rng
        self.now += timedelta(seconds=traffic.assessment_s)
        if traffic.wander:
            autocorrelation = math.exp(-traffic.assessment_s / traffic.wander_s)
            spread = traffic.wander * math.sqrt(1 - autocorrelation * autocorrelation)
            self._shift = autocorrelation * self._shift + float(rng.normal(scale=spread))
        num_requests = int(rng.poisson(traffic.requests_per_s * traffic.assessment_s))
        challenger_requests = int(rng.binomial(num_requests, step.share))
        challenger_requests, production_requests = (
            (num_requests, num_requests)
            if step.is_shadowed
            else (challenger_requests, num_requests - challenger_requests)
        )
        is_harmful = (self.now - START).total_seconds() > traffic.harm_at_s
        self._challenger = self._draw(self._challenger, challenger_requests, is_harmful=is_harmful)
        self._production = self._draw(self._production, production_requests, is_harmful=False)
        return TrafficCounts(
            rollout=rollout,
            epoch=epoch,
            since=self._since,
            until=self.now,
            production=self._production,
            challenger=self._challenger,
        )

    def _draw(self, counts_before: ArmCounts, requests: int, *, is_harmful: bool) -> ArmCounts:
        traffic, rng = self._traffic, self._rng
        common = math.exp(self._shift - traffic.wander**2 / 2)
        rates = {
            "errors": traffic.error_rate * common * (traffic.error_factor if is_harmful else 1.0),
            "timeouts": late_rate(traffic.deadline - self._shift),
            "slower": late_rate(_P95 - self._shift) * (traffic.slow_factor if is_harmful else 1.0),
        }
        counts = {k: int(rng.binomial(requests, min(1.0, rate))) for k, rate in rates.items()}
        return ArmCounts(
            requests=counts_before.requests + requests,
            **{name: getattr(counts_before, name) + count for name, count in counts.items()},
        )
