"""Sample rollouts, traffic counts, verdicts and checks for tests of rollouts."""

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
UNHEALTHY = ArmCounts(requests=1000, errors=200, slower=50)


def make_rollout(settings: RolloutSettings = SETTINGS) -> Rollout:
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


def make_traffic_counts(
    rollout: Rollout,
    *,
    at: datetime,
    challenger: ArmCounts = HEALTHY,
    production: ArmCounts = HEALTHY,
    epoch: int | None = None,
    dropped: int = 0,
) -> TrafficCounts:
    return TrafficCounts(
        rollout=rollout.id,
        epoch=rollout.epoch if epoch is None else epoch,
        since=rollout.step_since,
        until=max(at, rollout.step_since),
        production=production,
        challenger=challenger,
        shadow_dropped=dropped,
    )


def assess(
    rollout: Rollout,
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
    """Return the transition of one check, ``after_s`` seconds after the last check."""
    now = rollout.checked_at + timedelta(seconds=after_s)
    traffic = make_traffic_counts(
        rollout, at=now, challenger=challenger, production=production, epoch=epoch, dropped=dropped
    )
    return advance(
        rollout, traffic, now=now, production=in_production, quality=quality, drift=drift
    )


def make_verdict(
    outcome: Outcome, *, candidate: str = CANDIDATE, reference: str = PRODUCTION
) -> Verdict:
    """Return a verdict with only the fields that a rollout reads."""
    return Verdict.model_construct(
        outcome=outcome, candidate=candidate, reference=reference, reason="Proven."
    )
