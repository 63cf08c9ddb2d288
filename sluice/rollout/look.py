"""One look at a rollout: what speaks against its challenger, and what is lacking (ROLL-2)."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from sluice.base.digests import short
from sluice.base.errors import ContractError
from sluice.rollout.guards import tell
from sluice.rollout.observations import Window
from sluice.rollout.state import GuardReading, PredictionDrift, Rollout
from sluice.verdicts.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What is known at one moment. ``rollout`` has folded the window in, when it is its own."""

    rollout: Rollout
    window: Window
    now: datetime
    guards: tuple[GuardReading, ...]
    quality: Verdict | None
    drift: PredictionDrift | None

    def harm(self) -> str:
        """Return what is proven against the challenger; empty when nothing is."""
        return " ".join(self._harm())

    def lacking(self) -> str:
        """Return why the step cannot end; empty when it can."""
        return " ".join([*self._lacking_evidence(), *self._lacking_calm()])

    def _harm(self) -> Iterator[str]:
        broken = [reading for reading in self.guards if reading.verdict == "breach"]
        if broken:
            yield f"Worse than production: {tell(broken, self.rollout.evidence)}."
        if self.drift is not None and self.drift.distance > self.drift.limit:
            yield f"Its predictions are too far from production's: {_drift(self.drift)}."
        if self.quality is not None and self.quality.outcome == "REJECT":
            yield f"The labels are against it: {self.quality.reason}"

    def _lacking_evidence(self) -> Iterator[str]:
        rollout, window, settings = self.rollout, self.window, self.rollout.settings
        if window.epoch != rollout.epoch:
            yield (
                f"The servers' counts are of epoch {window.epoch}, the weights of epoch "
                f"{rollout.epoch}."
            )
            return
        waited_s = min(
            (self.now - rollout.step_since).total_seconds(),
            (window.until - window.since).total_seconds(),
        )
        if not waited_s >= settings.min_step_s:
            yield f"{waited_s:.0f} of {settings.min_step_s:g} s have passed."
        compared = window.compared
        few = [
            f"{counts.requests} of {settings.min_requests} requests of {name}"
            for name, counts in (
                ("the challenger", compared.challenger),
                ("production", compared.production),
            )
            if counts.requests < settings.min_requests
        ]
        if few:
            yield f"Not enough evidence: {' and '.join(few)} were seen."

    def _lacking_calm(self) -> Iterator[str]:
        settings, drift = self.rollout.settings, self.drift
        suspects = [reading for reading in self.guards if reading.verdict != "calm"]
        if suspects:
            yield f"Not calm: {tell(suspects, self.rollout.evidence)}."
        dropped = self.window.shadow_dropped
        compared = self.window.compared
        idle = min(compared.challenger.requests, compared.production.requests)
        copies = dropped + idle
        if self.rollout.current_step.shadow and dropped > settings.max_dropped * copies:
            yield f"{dropped} of {copies} copies found the queue full."
        failures = sum(
            counts.errors + counts.timeouts + counts.not_finite
            for counts in (self.window.challenger, self.window.production)
        )
        if not self.rollout.current_step.shadow and dropped > settings.max_dropped * failures:
            yield (
                f"{dropped} of {failures} failures could not be compared with the other arm's "
                "answer: there was no room to ask it."
            )
        if drift is not None and not drift.distance <= drift.limit:
            counted = f"{drift.rows} of {settings.min_pairs} requests were answered by both"
            seen = counted if drift.rows < settings.min_pairs else _drift(drift)
            yield f"How far its predictions are from production's is not known: {seen}."
        if self.rollout.at_last_step and settings.needs_quality:
            outcome = "none yet" if self.quality is None else self.quality.outcome
            if outcome != "PROMOTE":
                yield f"The gate has to say PROMOTE on labelled pairs; its verdict: {outcome}."


def require_subject(rollout: Rollout, window: Window, quality: Verdict | None) -> None:
    """Refuse evidence that is about something else.

    Raises:
        ContractError: The window is of another rollout, or the verdict on other models.
    """
    if window.rollout != rollout.id:
        raise ContractError(
            f"The window must be of rollout {rollout.id}, got one of {window.rollout}.",
            fix="Read the counts of the rollout that is to be advanced.",
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
                fix="Judge the pairs of both arms of this rollout.",
            )


def _drift(drift: PredictionDrift) -> str:
    return f"{drift.distance:.4g}, limit {drift.limit:.4g}, on {drift.rows} requests"
