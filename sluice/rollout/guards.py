"""What the guards of a rollout say, each in numbers and in a sentence (ROLL-2)."""

from collections.abc import Sequence

from sluice.rollout.evidence import GUARDS, Evidence, GuardName
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state import GuardReading

CALLED: dict[GuardName, str] = {
    "errors": "errors",
    "timeouts": "answers after the deadline",
    "not_finite": "answers with NaN or infinity",
    "slower": "answers slower than production's p95",
}


def read_guards(evidence: Evidence, settings: RolloutSettings) -> tuple[GuardReading, ...]:
    """Return every guard's reading; the guards share alpha, so all together keep it."""
    others = (1 - settings.errors_part) / (len(GUARDS) - 1)
    suspect = 1 / settings.suspicion
    readings = []
    for guard in GUARDS:
        found = evidence.of(guard)
        part = settings.errors_part if guard == "errors" else others
        limit = 1 / (part * settings.alpha)
        # A NaN is not below the limit of suspicion, and so lets no step end.
        verdict = "breach" if found >= limit else "calm" if found < suspect else "suspect"
        readings.append(
            GuardReading(
                guard=guard,
                evidence=found,
                limit=limit,
                challenger=getattr(evidence.challenger, guard),
                production=getattr(evidence.production, guard),
                verdict=verdict,
            )
        )
    return tuple(readings)


def tell(readings: Sequence[GuardReading], evidence: Evidence) -> str:
    """Say what the readings show, the strongest first: for the reason of a transition."""
    ours, theirs = evidence.challenger.requests, evidence.production.requests
    return "; ".join(
        f"{reading.challenger} {CALLED[reading.guard]} in {ours} requests of the challenger, "
        f"{reading.production} in {theirs} of production, evidence {amount(reading.evidence)} of "
        f"{amount(reading.limit)}"
        for reading in sorted(readings, key=lambda reading: -reading.evidence)
    )


def amount(value: float) -> str:
    """Return evidence as people read it: 0.35, 167, 2,555; a power of ten above a million."""
    return f"{value:,.0f}" if 1000 <= value < 1e6 else f"{value:.3g}"
