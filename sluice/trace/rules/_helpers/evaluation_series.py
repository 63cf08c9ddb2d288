"""Evaluations of one loss over the steps of a training."""

from sluice.trace.records.losses import EvaluationPassRecord
from sluice.trace.records.trace import Trace


def evaluation_series(trace: Trace) -> list[tuple[EvaluationPassRecord, ...]]:
    """Return the evaluations of each network, loader and loss function, in the order of steps.

    Only the first evaluation after a step is included: before later evaluations, the program may
    have loaded other weights.
    """
    series: dict[tuple[int, int, str], dict[int, EvaluationPassRecord]] = {}
    for record in trace.evaluations:
        key = record.network, record.loader, record.kind
        series.setdefault(key, {}).setdefault(record.step, record)
    return [tuple(passes_by_step.values()) for passes_by_step in series.values()]
