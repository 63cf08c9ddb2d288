"""Assessment of a rollout at one moment: proven harm, and what is missing to end the step."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from sluice.base.digests import short
from sluice.base.errors import ContractError
from sluice.rollout.guards import describe_readings
from sluice.rollout.observations import TrafficCounts
from sluice.rollout.state import GuardReading, PredictionDrift, Rollout
from sluice.verdicts.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """Everything known about a rollout at one moment.

    ``rollout`` already includes the evidence of ``window`` when both are of the same epoch.
    """

    rollout: Rollout
    window: TrafficCounts
    now: datetime
    guards: tuple[GuardReading, ...]
    quality: Verdict | None
    drift: PredictionDrift | None

    def harm(self) -> str:
        """Return what is proven against the challenger; empty when nothing is."""
        return " ".join(self._harm())

    def missing(self) -> str:
        """Return why the step cannot end yet; empty when it can."""
        return " ".join([*self._missing_counts(), *self._open_concerns()])

    def _harm(self) -> Iterator[str]:
        broken = [reading for reading in self.guards if reading.verdict == "breach"]
        if broken:
            yield f"Worse than production: {describe_readings(broken, self.rollout.evidence)}."
        if self.drift is not None and self.drift.distance > self.drift.limit:
            yield f"Its predictions differ too much from production's: {_drift(self.drift)}."
        if self.quality is not None and self.quality.outcome == "REJECT":
            yield f"Labelled rows show that it is worse: {self.quality.reason}"

    def _missing_counts(self) -> Iterator[str]:
        rollout, window, settings = self.rollout, self.window, self.rollout.settings
        if window.epoch != rollout.epoch:
            yield (
                f"The servers' counts are of epoch {window.epoch}, the traffic split is of epoch "
                f"{rollout.epoch}."
            )
            return
        waited_s = min(
            (self.now - rollout.step_since).total_seconds(),
            (window.until - window.since).total_seconds(),
        )
        if not waited_s >= settings.min_step_s:
            yield f"{waited_s:.0f} of {settings.min_step_s:g} s have passed."
        compared = window.comparable
        few = [
            f"{counts.requests} of {settings.min_requests} requests of {name}"
            for name, counts in (
                ("the challenger", compared.challenger),
                ("production", compared.production),
            )
            if counts.requests < settings.min_requests
        ]
        if few:
            yield f"Not enough evidence: {' and '.join(few)} were counted."

    def _open_concerns(self) -> Iterator[str]:
        settings, drift = self.rollout.settings, self.drift
        warnings = [reading for reading in self.guards if reading.verdict != "ok"]
        if warnings:
            yield f"Guards warn: {describe_readings(warnings, self.rollout.evidence)}."
        dropped = self.window.shadow_dropped
        compared = self.window.comparable
        idle = min(compared.challenger.requests, compared.production.requests)
        attempts = dropped + idle
        if self.rollout.current_step.shadow and dropped > settings.max_dropped_rate * attempts:
            yield f"{dropped} of {attempts} shadow requests were dropped, as the queue was full."
        failures = sum(
            counts.errors + counts.timeouts + counts.not_finite
            for counts in (self.window.challenger, self.window.production)
        )
        if not self.rollout.current_step.shadow and dropped > settings.max_dropped_rate * failures:
            yield (
                f"{dropped} of {failures} failures could not be compared with the other arm's "
                "response, because its queue was full."
            )
        if drift is not None and not drift.distance <= drift.limit:
            counted = f"{drift.rows} of {settings.min_pairs} requests were answered by both"
            seen = counted if drift.rows < settings.min_pairs else _drift(drift)
            yield f"The distance between the predictions of both arms is unknown: {seen}."
        if self.rollout.at_last_step and settings.needs_quality:
            outcome = "none yet" if self.quality is None else self.quality.outcome
            if outcome != "PROMOTE":
                yield (
                    "The step needs PROMOTE from the gate on labelled pairs; its verdict: "
                    f"{outcome}."
                )


def require_same_rollout(rollout: Rollout, window: TrafficCounts, quality: Verdict | None) -> None:
    """Refuse evidence that is about another rollout or other models.

    Raises:
        ContractError: The window is of another rollout, or the verdict is about other models.
    """
    if window.rollout != rollout.id:
        raise ContractError(
            f"The window must be of rollout {rollout.id}, got one of {window.rollout}.",
            fix="Pass the counts of the rollout that you advance.",
        )
    if quality is None:
        return
    for role, wanted, found in (
        ("candidate", rollout.candidate, quality.candidate),
        ("reference", rollout.production, quality.reference),
    ):
        if wanted != found:
            raise ContractError(
                f"The verdict's {role} must be the rollout's, {short(wanted)}, got {short(found)}.",
                fix="Pass a verdict on the labelled pairs of this rollout's arms.",
            )


def _drift(drift: PredictionDrift) -> str:
    return f"{drift.distance:.4g}, limit {drift.limit:.4g}, on {drift.rows} requests"
