"""A rollout with traffic counts and verdicts, for tests."""

from datetime import UTC, datetime, timedelta

from sluice.rollout.observations import ArmCounts, TrafficCounts
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state import PredictionDrift, Rollout, Transition
from sluice.rollout.state_machine import advance
from sluice.rollout.transitions import first_transition
from sluice.verdicts.verdict import Outcome, Verdict

NOW = datetime(2025, 3, 14, 9, 0, tzinfo=UTC)
SETTINGS = RolloutSettings(min_step_s=60, max_step_s=600, min_requests=100, lease_s=120)
CANDIDATE, PRODUCTION = "c" * 64, "p" * 64
HEALTHY = ArmCounts(requests=1000, errors=10, slower=50)
SICK = ArmCounts(requests=1000, errors=200, slower=50)


def rollout(settings: RolloutSettings = SETTINGS) -> Rollout:
    return first_transition(
        rollout_id="r1",
        model="m",
        version=2,
        candidate=CANDIDATE,
        production=PRODUCTION,
        production_version=1,
        pointer_revision=3,
        epoch=4,
        settings=settings,
        actor="ada",
        reason="The gate said PROMOTE.",
        now=NOW,
    ).rollout


def window(
    of: Rollout,
    *,
    at: datetime,
    challenger: ArmCounts = HEALTHY,
    production: ArmCounts = HEALTHY,
    epoch: int | None = None,
    dropped: int = 0,
) -> TrafficCounts:
    return TrafficCounts(
        rollout=of.id,
        epoch=of.epoch if epoch is None else epoch,
        since=of.step_since,
        until=max(at, of.step_since),
        production=production,
        challenger=challenger,
        shadow_dropped=dropped,
    )


def look(
    of: Rollout,
    *,
    after_s: float = 60,
    challenger: ArmCounts = HEALTHY,
    production: ArmCounts = HEALTHY,
    epoch: int | None = None,
    dropped: int = 0,
    quality: Verdict | None = None,
    drift: PredictionDrift | None = None,
    in_production: str | None = PRODUCTION,
) -> Transition:
    """Check once, ``after_s`` after the last check."""
    now = of.checked_at + timedelta(seconds=after_s)
    seen = window(
        of, at=now, challenger=challenger, production=production, epoch=epoch, dropped=dropped
    )
    return advance(of, seen, now=now, production=in_production, quality=quality, drift=drift)


def verdict(
    outcome: Outcome, *, candidate: str = CANDIDATE, reference: str = PRODUCTION
) -> Verdict:
    """Return what a rollout reads of a verdict; how it is reached is the gate's own test."""
    return Verdict.model_construct(
        outcome=outcome, candidate=candidate, reference=reference, reason="Proven."
    )
