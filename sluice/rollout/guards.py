"""Reads the guards of a rollout: the evidence of harm, its limit and the verdict of each guard."""

from collections.abc import Sequence

from sluice.base.pluralize import pluralize
from sluice.rollout.evidence import GUARDS, GuardName, HarmEvidence
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state import GuardReading

GUARD_LABELS: dict[GuardName, str] = {
    "errors": "errors",
    "timeouts": "answers after the deadline",
    "not_finite": "answers with NaN or infinity",
    "slower": "answers above the latency limit",
}


def read_guards(evidence: HarmEvidence, settings: RolloutSettings) -> tuple[GuardReading, ...]:
    """Return the reading of every guard.

    The guards share alpha, so that all of them together raise a false alarm within an hour with
    probability at most alpha.
    """
    other_alpha_share = (1 - settings.errors_alpha_share) / (len(GUARDS) - 1)
    warn_limit = 1 / settings.warn_alpha
    readings = []
    for guard in GUARDS:
        e_value = evidence.e_value(guard)
        alpha_share = settings.errors_alpha_share if guard == "errors" else other_alpha_share
        limit = 1 / (alpha_share * settings.alpha)
        # The verdict of a NaN e-value is "warn", so no step ends.
        verdict = "breach" if e_value >= limit else "ok" if e_value < warn_limit else "warn"
        readings.append(
            GuardReading(
                guard=guard,
                evidence=e_value,
                limit=limit,
                challenger=getattr(evidence.challenger, guard),
                production=getattr(evidence.production, guard),
                verdict=verdict,
            )
        )
    return tuple(readings)


def describe_readings(readings: Sequence[GuardReading], evidence: HarmEvidence) -> str:
    """Describe the readings for the reason of a transition, strongest evidence first."""
    num_challenger_requests = evidence.challenger.requests
    num_production_requests = evidence.production.requests
    return "; ".join(
        f"{_describe_count(reading.challenger, reading.guard)} in "
        f"{pluralize(num_challenger_requests, 'request')} of the challenger, "
        f"{reading.production:,} in {num_production_requests:,} of production, evidence "
        f"{format_evidence(reading.evidence)}, limit {format_evidence(reading.limit)}"
        for reading in sorted(readings, key=lambda reading: -reading.evidence)
    )


def format_evidence(value: float) -> str:
    """Format evidence as "0.35", "167" or "2,555"; a million and more as a power of ten."""
    return f"{value:,.0f}" if 999.5 <= value < 1e6 else f"{value:.3g}"


def _describe_count(count: int, guard: GuardName) -> str:
    noun, _, details = GUARD_LABELS[guard].partition(" ")
    return f"{pluralize(count, noun.removesuffix('s'))} {details}".rstrip()
