"""Which of a workload's metrics a candidate makes worse, by how much, and how sure that is.

The gate decides on losses alone. What a better loss was paid for with is said beside the verdict,
whether or not a guard asks for it.
"""

from collections.abc import Mapping

from sluice.evaluation.estimate import Estimate
from sluice.evaluation.metric_table import MetricTable, folds_part
from sluice.metrics.directions import Direction, direction_of
from sluice.verdicts.metric_change import MetricChange

_ONE_SIDED = 0.025
"""Of each side of a 95 % interval [rate]."""

_GATES_OWN = "loss"
"""The metric that the gate itself judges."""


def find_worse_metrics(
    candidate: MetricTable | None,
    reference: MetricTable | None,
    *,
    declared: Mapping[str, Direction],
) -> tuple[MetricChange, ...]:
    """Return every metric whose mean is worse than the reference's.

    A metric that only one arm has, that is not finite or whose direction is not known is left out.
    The interval is of the two-way variance: over the seeds of both arms and over folds.

    Args:
        candidate: Metrics of the candidate; None when they were not computed.
        reference: Metrics of what it is compared with, on the same window.
        declared: Which way the workload's own metrics improve, by name.
    """
    if candidate is None or reference is None:
        return ()
    changes = (
        _worse(name, candidate, reference, direction)
        for name in candidate.values
        if name != _GATES_OWN and (direction := direction_of(name, declared)) is not None
    )
    return tuple(change for change in changes if change is not None)


def _worse(
    name: str, candidate: MetricTable, reference: MetricTable, direction: Direction
) -> MetricChange | None:
    our_SF, their_SF = candidate.numbers(name), reference.numbers(name)
    if our_SF is None or their_SF is None:
        return None
    difference_F = our_SF.mean(axis=0) - their_SF.mean(axis=0)
    difference = float(difference_F @ candidate.share_F)
    if not (difference < 0 if direction == "higher" else difference > 0):  # false for NaN, too
        return None
    low, high = Estimate(
        gain=difference,
        candidate_seeds=candidate.seeds_part(name),
        reference_seeds=reference.seeds_part(name),
        rows=folds_part(difference_F, candidate.share_F),
    ).bounds(_ONE_SIDED)
    return MetricChange(
        metric=name,
        candidate=candidate.means[name],
        reference=reference.means[name],
        low=low,
        high=high,
    )
