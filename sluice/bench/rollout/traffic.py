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
    """Requests of both arms, and the harm that the challenger does from ``harm_at_s`` on.

    Response times are lognormal. Both arms may share a random effect, such as varying load. This
    effect shifts the log of the response time and of the error rate. It is an AR(1) process.
    """

    requests_per_s: float = 100.0
    """Mean number of requests per second to both arms together."""

    error_rate: float = 0.01
    """Mean share of failed requests without harm."""

    timeout_threshold_sd: float = 3.0
    """A response is a timeout if its log response time exceeds the mean by more than this [standard
    deviations]."""

    error_factor: float = 1.0
    """Factor by which the harm multiplies the challenger's error rate."""

    slow_response_factor: float = 1.0
    """Factor by which the harm multiplies the challenger's share of slow responses. A response is
    slow if it takes longer than the 95th percentile of responses without the shared effect."""

    harm_at_s: float = 0.0
    """Time after the start at which the harm begins [s]; infinity for no harm."""

    shared_effect_sd: float = 0.0
    """Standard deviation of the shared effect. The effect is added to the log error rate and to the
    standardised log response time."""

    shared_effect_decay_s: float = 60.0
    """Time in which the autocorrelation of the shared effect decreases to 1/e [s]."""

    assessment_interval_s: float = 2.0
    """Time between two assessments [s]."""


def upper_tail_probability(z: float) -> float:
    """Return the probability that a standard normal variable exceeds ``z``.

    >>> round(upper_tail_probability(1.6449), 4)
    0.05
    """
    return 0.5 * math.erfc(z / math.sqrt(2))


class TrafficSimulator:
    """Draws the counts of both arms for successive assessments."""

    def __init__(self, traffic: Traffic, *, rng: np.random.Generator) -> None:
        self._traffic = traffic
        self._rng = rng
        self._shared_effect = (
            float(rng.normal(scale=traffic.shared_effect_sd)) if traffic.shared_effect_sd else 0.0
        )
        self._challenger = self._production = ArmCounts()
        self._step_start = self.now = START

    def next_step(self) -> None:
        """Begin the next step of the rollout. Its counts start at 0."""
        self._challenger = self._production = ArmCounts()
        self._step_start = self.now

    def next_counts(self, step: RolloutStep, *, rollout: str, epoch: int) -> TrafficCounts:
        """Advance to the next assessment, and return the counts of the current step so far."""
        traffic, rng = self._traffic, self._rng
        self.now += timedelta(seconds=traffic.assessment_interval_s)
        if traffic.shared_effect_sd:
            autocorrelation = math.exp(
                -traffic.assessment_interval_s / traffic.shared_effect_decay_s
            )
            innovation_sd = traffic.shared_effect_sd * math.sqrt(1 - autocorrelation**2)
            self._shared_effect = autocorrelation * self._shared_effect + float(
                rng.normal(scale=innovation_sd)
            )
        num_requests = int(rng.poisson(traffic.requests_per_s * traffic.assessment_interval_s))
        challenger_requests = int(rng.binomial(num_requests, step.share))
        production_requests = num_requests - challenger_requests
        if step.is_shadowed:
            challenger_requests = production_requests = num_requests
        is_harmful = (self.now - START).total_seconds() > traffic.harm_at_s
        self._challenger = self._add_requests(
            self._challenger, challenger_requests, is_harmful=is_harmful
        )
        self._production = self._add_requests(
            self._production, production_requests, is_harmful=False
        )
        return TrafficCounts(
            rollout=rollout,
            epoch=epoch,
            since=self._step_start,
            until=self.now,
            production=self._production,
            challenger=self._challenger,
        )

    def _add_requests(
        self, counts_before: ArmCounts, num_requests: int, *, is_harmful: bool
    ) -> ArmCounts:
        traffic, rng = self._traffic, self._rng
        # The mean of this factor is 1, so that ``error_rate`` remains the mean error rate.
        shared_factor = math.exp(self._shared_effect - traffic.shared_effect_sd**2 / 2)
        rates = {
            "errors": traffic.error_rate
            * shared_factor
            * (traffic.error_factor if is_harmful else 1.0),
            "timeouts": upper_tail_probability(traffic.timeout_threshold_sd - self._shared_effect),
            "slower": upper_tail_probability(_P95 - self._shared_effect)
            * (traffic.slow_response_factor if is_harmful else 1.0),
        }
        counts = {
            name: int(rng.binomial(num_requests, min(1.0, rate))) for name, rate in rates.items()
        }
        return ArmCounts(
            requests=counts_before.requests + num_requests,
            **{name: getattr(counts_before, name) + count for name, count in counts.items()},
        )
