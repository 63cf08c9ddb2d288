"""Assesses a rollout at one moment: whether harm is proven, and why the step cannot end yet."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from sluice.base.digests import short
from sluice.base.errors import ContractError
from sluice.base.pluralize import pluralize
from sluice.rollout.guards import describe_readings
from sluice.rollout.observations import TrafficCounts
from sluice.rollout.state import GuardReading, PredictionDrift, Rollout
from sluice.verdicts.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """All information about a rollout at one moment."""

    rollout: Rollout
    """The rollout. Its evidence already includes ``traffic`` if both have the same epoch."""

    traffic: TrafficCounts
    """Counts of both arms in the current step."""

    now: datetime
    guards: tuple[GuardReading, ...]
    quality: Verdict | None
    """Newest verdict on labelled pairs of predictions; None without one."""

    drift: PredictionDrift | None
    """Distance between the predictions of both arms; None if it was not measured."""

    def describe_harm(self) -> str:
        """Return sentences about proven harm of the challenger; "" if none is proven."""
        return " ".join(self._harm_sentences())

    def describe_obstacles(self) -> str:
        """Return sentences that say why the step cannot end yet; "" if it can."""
        return " ".join([*self._traffic_obstacles(), *self._other_obstacles()])

    def _harm_sentences(self) -> Iterator[str]:
        breached_readings = [reading for reading in self.guards if reading.verdict == "breach"]
        if breached_readings:
            readings = describe_readings(breached_readings, self.rollout.evidence)
            yield f"The challenger is worse than production: {readings}."
        if self.drift is not None and self.drift.distance > self.drift.limit:
            yield (
                "The predictions of the challenger differ too much from production's: "
                f"{_describe_distance(self.drift)}."
            )
        if self.quality is not None and self.quality.outcome == "REJECT":
            yield f"Labelled rows show that the challenger is worse: {self.quality.reason}"

    def _traffic_obstacles(self) -> Iterator[str]:
        rollout, traffic, settings = self.rollout, self.traffic, self.rollout.settings
        if traffic.epoch != rollout.epoch:
            yield (
                f"The servers have counts for epoch {traffic.epoch}, but the traffic split has "
                f"epoch {rollout.epoch}."
            )
            return
        elapsed_s = min(
            (self.now - rollout.step_since).total_seconds(),
            (traffic.until - traffic.since).total_seconds(),
        )
        if not elapsed_s >= settings.min_step_s:
            yield f"{math.floor(elapsed_s)} of {settings.min_step_s:g} s have passed."
        comparable_counts = traffic.comparable_counts
        shortfalls = [
            f"{counts.requests} of {settings.min_requests} requests of {name}"
            for name, counts in (
                ("the challenger", comparable_counts.challenger),
                ("production", comparable_counts.production),
            )
            if counts.requests < settings.min_requests
        ]
        if shortfalls:
            yield f"Not enough evidence: {' and '.join(shortfalls)} were counted."

    def _other_obstacles(self) -> Iterator[str]:
        settings, drift = self.rollout.settings, self.drift
        warning_readings = [reading for reading in self.guards if reading.verdict != "ok"]
        if warning_readings:
            yield f"Guards warn: {describe_readings(warning_readings, self.rollout.evidence)}."
        num_dropped = self.traffic.shadow_dropped
        is_shadowed = self.rollout.current_step.is_shadowed
        comparable_counts = self.traffic.comparable_counts
        num_compared = min(
            comparable_counts.challenger.requests, comparable_counts.production.requests
        )
        num_attempts = num_dropped + num_compared
        if is_shadowed and num_dropped > settings.max_dropped_rate * num_attempts:
            yield (
                f"{num_dropped} of {num_attempts} shadow requests were dropped, because the server "
                "was busy."
            )
        num_failures = sum(
            counts.errors + counts.timeouts + counts.not_finite
            for counts in (self.traffic.challenger, self.traffic.production)
        )
        if not is_shadowed and num_dropped > settings.max_dropped_rate * num_failures:
            yield (
                f"{num_dropped} of {num_failures} failures could not be compared with the other "
                "arm's response, because the server was busy."
            )
        if drift is not None and math.isnan(drift.distance):
            if drift.rows < settings.min_pairs:
                reason = f"{drift.rows} of {settings.min_pairs} requests were answered by both arms"
            else:
                reason = _describe_distance(drift)
            yield f"The distance between the predictions of both arms is unknown: {reason}."
        if self.rollout.is_at_last_step and settings.needs_quality:
            outcome = "none yet" if self.quality is None else self.quality.outcome
            if outcome != "PROMOTE":
                yield (
                    "The step requires the verdict PROMOTE of the promotion gate on labelled "
                    f"pairs; the verdict is: {outcome}."
                )


def require_same_rollout(rollout: Rollout, traffic: TrafficCounts, quality: Verdict | None) -> None:
    """Reject counts of another rollout, or a verdict about other models.

    Raises:
        ContractError: The counts are of another rollout, or the verdict is about other models.
    """
    if traffic.rollout != rollout.id:
        raise ContractError(
            f"The counts must be of rollout {rollout.id}, got counts of {traffic.rollout}.",
            fix="Pass the counts of the rollout that you advance.",
        )
    if quality is None:
        return
    for role, expected, actual in (
        ("candidate", rollout.candidate, quality.candidate),
        ("reference", rollout.production, quality.reference),
    ):
        if expected != actual:
            raise ContractError(
                f"The verdict's {role} must be the {role} of the rollout, {short(expected)}, got "
                f"{short(actual)}.",
                fix="Pass a verdict on the labelled pairs of this rollout's arms.",
            )


def _describe_distance(drift: PredictionDrift) -> str:
    if math.isnan(drift.distance):
        return f"it is NaN on {pluralize(drift.rows, 'request')}"
    return (
        f"distance {drift.distance:.4g}, limit {drift.limit:.4g}, on "
        f"{pluralize(drift.rows, 'request')}"
    )
