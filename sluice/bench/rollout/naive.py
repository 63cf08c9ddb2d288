"""The naive test that the guards are compared with: a fixed-sample test at every assessment.

It is a one-sided pooled z-test of two proportions on all counts of the step so far. One application
has an error rate of ``alpha``. Repeated every two seconds, it eventually gives a false alarm.
"""

import math
from statistics import NormalDist

from sluice.rollout.evidence import GUARDS, GuardName
from sluice.rollout.observations import ArmCounts, TrafficCounts


def detect_harm_naively(counts: TrafficCounts, *, alpha: float) -> bool:
    """Return whether the z-test of any guard reports harm; the guards share alpha."""
    critical_value = NormalDist().inv_cdf(1 - alpha / len(GUARDS))
    return any(
        _z_statistic(counts.challenger, counts.production, guard) > critical_value
        for guard in GUARDS
    )


def _z_statistic(challenger: ArmCounts, production: ArmCounts, guard: GuardName) -> float:
    if not (challenger.requests and production.requests):
        return 0.0
    challenger_faults: int = getattr(challenger, guard)
    production_faults: int = getattr(production, guard)
    pooled_rate = (challenger_faults + production_faults) / (
        challenger.requests + production.requests
    )
    variance = pooled_rate * (1 - pooled_rate) * (1 / challenger.requests + 1 / production.requests)
    if not variance > 0:
        return 0.0
    return (
        challenger_faults / challenger.requests - production_faults / production.requests
    ) / math.sqrt(variance)
