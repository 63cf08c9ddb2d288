"""Advises how many more seeds or rows an inconclusive comparison needs."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerInputs:
    """Sample sizes of a comparison, and the variance component that each of them determines."""

    num_seeds: int
    """Number of seeds of the candidate."""

    num_reference_seeds: int
    """Number of seeds of the reference; 0 for a rule without seeds."""

    num_rows: int
    """Number of test rows, or of clusters if the rows are clustered."""

    seed_variance: float
    """Variance component that decreases with candidate seeds [loss units squared]."""

    reference_variance: float
    """Variance component that decreases with reference seeds [loss units squared]."""

    row_variance: float
    """Variance component that decreases with test rows [loss units squared]."""

    observation: str = "test row"
    """Singular name of what ``num_rows`` counts, for messages."""


def advise_sample_size(
    evidence: PowerInputs, *, distance: float, decisive_distance_se: float
) -> str:
    """Return a sentence that says which sample size to increase, and to what number.

    Each variance component is inversely proportional to its sample size. The advised sample size is
    the one that reduces the standard error to ``distance / decisive_distance_se`` with the smallest
    relative increase. If no single sample size is sufficient, all of them are listed.

    Args:
        evidence: Sample sizes and variance components.
        distance: Distance of the observed gain from the decision threshold, > 0 [loss units].
        decisive_distance_se: Distance between gain and threshold that a comparison needs, so that
            it decides with the desired power, > 0 [standard errors].
    """
    target_variance = (distance / decisive_distance_se) ** 2
    sources = (
        ("seeds of the candidate", evidence.num_seeds, evidence.seed_variance),
        ("seeds of the reference", evidence.num_reference_seeds, evidence.reference_variance),
        (f"{evidence.observation}s", evidence.num_rows, evidence.row_variance),
    )
    total = math.fsum(variance for _, _, variance in sources)
    # For each sample size that suffices alone: the factor by which it must grow, and its name and
    # present value.
    options = [
        (variance / (target_variance - (total - variance)), name, count)
        for name, count, variance in sources
        if count and target_variance > total - variance
    ]
    if not target_variance > 0 or not total > 0:
        return "The required sample size cannot be estimated from these losses."
    if options:
        factor, name, count = min(options)
        required_size = max(math.ceil(round(count * factor, 6)), count + 1)
        return (
            f"Use more {name}: about {_round_up(required_size)} would be sufficient, now {count}."
        )
    factor = total / target_variance
    increases = [
        f"about {_round_up(math.ceil(count * factor))} {name} (now {count})"
        for name, count, variance in sources
        if count and variance > 0
    ]
    return "A decision would require " + " and ".join(increases) + " together."


def _round_up(count: int) -> int:
    """Return a count rounded up to two significant digits, the precision of the estimate."""
    unit = int(10 ** max(0, len(str(count)) - 2))
    return math.ceil(count / unit) * unit
