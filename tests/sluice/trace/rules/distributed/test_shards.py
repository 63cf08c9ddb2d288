"""Comparison of the rows that ranks receive."""

import pytest

from sluice.trace.records.batches import EpochRecord, SketchRecord
from sluice.trace.rules._helpers.shards import LoaderShards, ShardSettings


def epoch(values, *, num_contents):
    return EpochRecord.model_construct(
        contents=SketchRecord(values=tuple(values), is_complete=True), num_contents=num_contents
    )


@pytest.mark.parametrize(("ratio", "is_overlapping"), [(2.0, True), (4.0, False)])
def test_shared_rows_must_exceed_the_rows_that_a_rank_repeats(ratio, is_overlapping):
    """Each rank shares half of its rows, and receives a fifth of its rows more than once."""
    epochs = epoch(range(20), num_contents=25), epoch(range(10, 30), num_contents=25)
    shards = LoaderShards((), epochs, ShardSettings(min_shared_to_repeated=ratio))

    assert shards.overlap == (10, 20)
    assert shards.repeated_share == pytest.approx(0.2)
    assert shards.is_overlapping is is_overlapping
