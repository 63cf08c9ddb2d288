"""Traces of small programs."""

import pytest
import torch

from sluice.trace.attach import traced
from sluice.trace.reading import read_trace
from sluice.trace.settings import TraceSettings


@pytest.fixture
def trace_of(tmp_path):
    """Return a function that runs a program traced, in one thread, and returns its trace."""

    def run(program, settings=None):
        torch.manual_seed(0)
        with traced(tmp_path / "traces", settings or TraceSettings()) as folder:
            program()
        return read_trace(folder)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield run
    torch.set_num_threads(threads)
