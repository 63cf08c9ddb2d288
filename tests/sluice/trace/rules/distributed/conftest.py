"""Traces of several ranks, each from a small program in the test process."""

import pytest

from sluice.trace.records.environment import DataParallelRecord

WRAPPER = DataParallelRecord(
    index=0, kind="DistributedDataParallel", network=-1, wrapper=-1, step=0
)


@pytest.fixture
def rank_traces_of(trace_of):
    """Return a function that traces a program once per rank, without a process group.

    The program takes the rank. With ``is_wrapped``, each trace has the record of a data-parallel
    wrapper. ``test_rank_rules`` traces real ranks.
    """

    def run(program, *, num_ranks=2, is_wrapped=True):
        traces = []
        for rank in range(num_ranks):
            trace = trace_of(lambda rank=rank: program(rank))
            start = trace.start.model_copy(update={"rank": rank, "world_size": num_ranks})
            wrappers = (WRAPPER,) if is_wrapped else ()
            traces.append(trace.model_copy(update={"start": start, "wrappers": wrappers}))
        return traces

    return run
