"""Finds metrics that are worse for the candidate than for the reference, with intervals.

The promotion gate decides on losses only. Worse metrics are reported with the verdict, even if no
guard exists for them.
"""

from collections.abc import Mapping

from sluice.evaluation.estimate import Estimate
from sluice.evaluation.metric_table import MetricTable, folds_component
from sluice.metrics.directions import Direction, direction_of
from sluice.verdicts.metric_change import MetricDeterioration

_ALPHA_PER_SIDE = 0.025
"""Error rate of each bound of a 95 % interval [rate]."""

_GATE_METRIC = "loss"
"""Name of the metric that the gate itself compares; it is not reported again."""


def find_worse_metrics(
    candidate: MetricTable | None,
    reference: MetricTable | None,
    *,
    directions: Mapping[str, Direction],
) -> tuple[MetricDeterioration, ...]:
    """Return all metrics whose mean is worse for the candidate than for the reference.

    A metric is excluded if only one arm has it, if it is not finite, or if its direction of
    improvement is unknown. The interval includes the variance over the seeds of both arms and over
    folds.

    Args:
        candidate: Metrics of the candidate; None if they were not computed.
        reference: Metrics of the reference on the same window; None if they were not computed.
        directions: Directions in which the workload's own metrics improve, by name.
    """
    if candidate is None or reference is None:
        return ()
    deteriorations = (
        _find_deterioration(name, candidate, reference, direction)
        for name in candidate.values
        if name != _GATE_METRIC and (direction := direction_of(name, directions)) is not None
    )
    return tuple(metric for metric in deteriorations if metric is not None)


def _find_deterioration(
    name: str, candidate: MetricTable, reference: MetricTable, direction: Direction
) -> MetricDeterioration | None:
    """Return the deterioration of a metric; None if it is not worse, or cannot be compared."""
    candidate_SF, reference_SF = candidate.values_of(name), reference.values_of(name)
    if candidate_SF is None or reference_SF is None:
        return None
    difference_F = candidate_SF.mean(axis=0) - reference_SF.mean(axis=0)
    difference = float(difference_F @ candidate.share_F)
    if not (difference < 0 if direction == "higher" else difference > 0):  # also false for NaN
        return None
    low, high = Estimate(
        gain=difference,
        candidate_component=candidate.seeds_component(name),
        reference_component=reference.seeds_component(name),
        row_component=folds_component(difference_F, candidate.share_F),
    ).bounds(_ALPHA_PER_SIDE)
    return MetricDeterioration(
        metric=name,
        candidate=candidate.means[name],
        reference=reference.means[name],
        low=low,
        high=high,
    )
