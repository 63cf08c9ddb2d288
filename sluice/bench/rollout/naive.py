"""What the guards are compared with: a test made for one look, asked at every look.

Two proportions, pooled z-test, one-sided, on all counts of the step so far. Each of its answers is
right in all but ``alpha`` of the cases; asked every two seconds it is wrong sooner or later.
"""

import math
from statistics import NormalDist

from sluice.rollout.evidence import GUARDS, GuardName
from sluice.rollout.observations import ArmCounts, Window


def naive_harm(window: Window, *, alpha: float) -> bool:
    """Return whether a guard's z-test finds the challenger worse; the guards share alpha."""
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
