"""Advises how many more seeds or rows an inconclusive comparison needs."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerInputs:
    """Sample sizes of a comparison, and a variance component for each sample size."""

    num_seeds: int
    """Number of seeds of the candidate."""

    num_reference_seeds: int
    """Number of seeds of the reference; 0 for a rule without seeds."""

    num_rows: int
    """Number of test rows, or of clusters if the rows are clustered."""

    seed_variance: float
    """Variance component due to the seeds of the candidate [loss units squared]."""

    reference_variance: float
    """Variance component due to the seeds of the reference [loss units squared]."""

    row_variance: float
    """Variance component due to the test rows [loss units squared]."""

    row_noun: str = "test row"
    """Noun for one of ``num_rows``, for messages: "test row" or "cluster"."""


def advise_sample_size(
    evidence: PowerInputs, *, distance: float, decisive_distance_se: float
) -> str:
    """Return a sentence that says which sample size to increase, and to what number.

    Each variance component is inversely proportional to its sample size. For the desired power, the
    standard error must fall to ``distance / decisive_distance_se``. The sentence names the sample
    size that achieves this alone with the smallest relative increase. If no sample size achieves
    this alone, the sentence lists all sample sizes.

    Args:
        evidence: Sample sizes and variance components.
        distance: Distance of the observed gain from the decision threshold, > 0 [loss units].
        decisive_distance_se: Distance between gain and threshold at which a comparison decides
            with the desired power, > 0 [standard errors].
    """
    target_variance = (distance / decisive_distance_se) ** 2
    components = (
        ("seeds of the candidate", evidence.num_seeds, evidence.seed_variance),
        ("seeds of the reference", evidence.num_reference_seeds, evidence.reference_variance),
        (f"{evidence.row_noun}s", evidence.num_rows, evidence.row_variance),
    )
    total_variance = math.fsum(variance for _, _, variance in components)
    # For each sample size that suffices alone: the factor by which it must grow, its name, and its
    # present value.
    options = [
        (variance / (target_variance - (total_variance - variance)), name, count)
        for name, count, variance in components
        if count and target_variance > total_variance - variance
    ]
    if not target_variance > 0 or not total_variance > 0:
        return "The required sample size cannot be estimated from these losses."
    if options:
        growth_factor, name, count = min(options)
        required_size = max(math.ceil(round(count * growth_factor, 6)), count + 1)
        return (
            f"Use more {name}: about {_round_up(required_size)} would be sufficient, now {count}."
        )
    growth_factor = total_variance / target_variance
    increases = [
        f"about {_round_up(math.ceil(count * growth_factor))} {name} (now {count})"
        for name, count, variance in components
        if count and variance > 0
    ]
    return "A decision would require " + " and ".join(increases) + " together."


def _round_up(count: int) -> int:
    """Return a count rounded up to two significant digits, the precision of the estimate."""
    unit = int(10 ** max(0, len(str(count)) - 2))
    return math.ceil(count / unit) * unit
