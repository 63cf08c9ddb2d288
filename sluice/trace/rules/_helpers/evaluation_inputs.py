"""Inputs of a network in training and in evaluation, for rules that compare the two."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from sluice.trace.records.inputs import InputRecord
from sluice.trace.records.trace import Trace

T = TypeVar("T")


def largest_input_records(trace: Trace, network: int) -> dict[tuple[bool, int], InputRecord]:
    """Return the record with most rows of a network, by training or evaluation, and by loader."""
    records: dict[tuple[bool, int], InputRecord] = {}
    for record in trace.inputs:
        if record.network == network and record.columns:
            records[record.is_learning, record.loader] = record
    return records


def input_pairs(
    trace: Trace, *, min_rows: int
) -> Iterator[tuple[int, InputRecord, list[InputRecord]]]:
    """Yield each network with its training inputs and its evaluation inputs.

    Networks with fewer rows of either, or with generated training inputs, are left out.
    """
    for network in sorted({f.network for f in trace.inputs}):
        records = [
            (learning, f) for (learning, _), f in largest_input_records(trace, network).items()
        ]
        learned, judged = (
            [f for learning, f in records if learning == wanted and f.num_rows >= min_rows]
            for wanted in (True, False)
        )
        if len(learned) == 1 and judged and not learned[0].is_generated:
            yield network, learned[0], judged


def consistent_difference(
    judged: list[InputRecord], detect: Callable[[InputRecord], T | None]
) -> tuple[InputRecord, T] | None:
    """Return the first evaluation on data and its difference, if all evaluations show a difference.

    If one evaluation has inputs like those of training, the others differ on purpose.
    """
    matches = [(f, shown) for f in judged if (shown := detect(f)) is not None]
    on_data = [(f, shown) for f, shown in matches if not f.is_generated]
    return on_data[0] if len(matches) == len(judged) and on_data else None
