"""The naive test that the guards are compared with: a fixed-sample test at every assessment.

One-sided pooled z-test of two proportions on all counts of the step so far. A single test has an
error rate of ``alpha``; repeated every two seconds, it eventually gives a false alarm.
"""

import math
from statistics import NormalDist

from sluice.rollout.evidence import GUARDS, GuardName
from sluice.rollout.observations import ArmCounts, TrafficCounts


def naive_harm(window: TrafficCounts, *, alpha: float) -> bool:
    """Return whether the z-test of any guard reports harm; the guards share alpha."""
    critical = NormalDist().inv_cdf(1 - alpha / len(GUARDS))
    return any(_z(window.challenger, window.production, guard) > critical for guard in GUARDS)


def _z(ours: ArmCounts, theirs: ArmCounts, guard: GuardName) -> float:
    if not (ours.requests and theirs.requests):
        return 0.0
    bad: int = getattr(ours, guard)
    other: int = getattr(theirs, guard)
    pooled = (bad + other) / (ours.requests + theirs.requests)
    variance = pooled * (1 - pooled) * (1 / ours.requests + 1 / theirs.requests)
    if not variance > 0:
        return 0.0
    return (bad / ours.requests - other / theirs.requests) / math.sqrt(variance)
