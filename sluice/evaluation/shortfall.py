"""What an undecided comparison lacks: seeds or rows, and roughly how many."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """How much there is, and how much of the variance each source of chance holds."""

    num_seeds: int
    """Candidate's seeds."""

    num_reference_seeds: int
    """0 for a rule without seeds."""

    num_rows: int
    seed_variance: float
    """Part of the mean gain's variance that more candidate seeds shrink [loss units squared]."""

    reference_variance: float
    """Part that more seeds of the reference shrink [loss units squared]."""

    row_variance: float
    """Part that only more test rows shrink [loss units squared]."""


def advise(evidence: Evidence, *, distance: float, reach: float) -> str:
    """Say in a sentence which one source of evidence to enlarge, and to how many.

    A part of the variance shrinks in proportion to its count. The advice is the source that
    alone brings the standard error down to ``distance / reach`` and has to grow the least; when
    none can alone, all are named. More seeds cannot repair a short window, and the sum says so.

    Args:
        evidence: Counts and parts of the variance.
        distance: How far the gain seen is from the line to be cleared, > 0 [loss units].
        reach: Distance in standard errors that decides with the power asked for, > 0.
    """
    target = (distance / reach) ** 2
    sources = (
        ("seeds of the candidate", evidence.num_seeds, evidence.seed_variance),
        ("seeds of the reference", evidence.num_reference_seeds, evidence.reference_variance),
        ("test rows", evidence.num_rows, evidence.row_variance),
    )
    total = math.fsum(variance for _, _, variance in sources)
    options = [
        (variance / (target - (total - variance)), name, count)
        for name, count, variance in sources
        if count and target > total - variance
    ]
    if not target > 0 or not total > 0:
        return "How much more evidence would settle it cannot be told from these losses."
    if options:
        factor, name, count = min(options)
        wanted = max(math.ceil(round(count * factor, 6)), count + 1)
        return f"It lacks {name}: about {_round_up(wanted)} would settle it, now {count}."
    factor = total / target
    needs = [
        f"about {_round_up(math.ceil(count * factor))} {name} (now {count})"
        for name, count, variance in sources
        if count and variance > 0
    ]
    return "No single source settles it; together it would take " + " and ".join(needs) + "."


def _round_up(count: int) -> int:
    """Two leading digits: the estimate is not better than that."""
    unit = int(10 ** max(0, len(str(count)) - 2))
    return math.ceil(count / unit) * unit
