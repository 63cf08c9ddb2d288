"""Inputs of a network in training and in evaluation, for rules that compare the two."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from sluice.trace.records.inputs import InputRecord
from sluice.trace.records.trace import Trace

T = TypeVar("T")


def latest_input_records(trace: Trace, network: int) -> dict[tuple[bool, int], InputRecord]:
    """Return the latest input records of a network, by (whether used for training, loader index).

    Records are cumulative, so the latest record covers all inspected rows. Inputs without column
    statistics, such as tokens, are left out.
    """
    records: dict[tuple[bool, int], InputRecord] = {}
    for record in trace.inputs:
        if record.network == network and record.columns:
            records[record.is_learning, record.loader] = record
    return records


def training_and_evaluation_inputs(
    trace: Trace, *, min_rows: int
) -> Iterator[tuple[InputRecord, list[InputRecord]]]:
    """Yield the training inputs and the evaluation inputs of each network.

    Left out are networks without an evaluation, networks that are trained on several loaders, and
    networks whose training inputs are generated. Records of fewer than ``min_rows`` rows are
    ignored.
    """
    for network in sorted({record.network for record in trace.inputs}):
        records = [
            record
            for record in latest_input_records(trace, network).values()
            if record.num_rows >= min_rows
        ]
        training_records = [record for record in records if record.is_learning]
        evaluation_records = [record for record in records if not record.is_learning]
        if (
            len(training_records) == 1
            and evaluation_records
            and not training_records[0].is_generated
        ):
            yield training_records[0], evaluation_records


def consistent_difference(
    evaluations: list[InputRecord], find_difference: Callable[[InputRecord], T | None]
) -> tuple[InputRecord, T] | None:
    """Return an evaluation and its difference from training, if all evaluations differ.

    The first evaluation whose inputs are not generated is returned; None without one. The result is
    also None if any evaluation does not differ: the other evaluations then differ on purpose.

    Args:
        evaluations: Input records of the evaluations of one network.
        find_difference: Function that returns the difference of an evaluation from training; None
            without a difference.
    """
    differences = [(r, d) for r in evaluations if (d := find_difference(r)) is not None]
    if len(differences) < len(evaluations):
        return None
    return next(((r, d) for r, d in differences if not r.is_generated), None)
