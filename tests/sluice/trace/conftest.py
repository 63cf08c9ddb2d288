"""Traces of small programs."""

import gc
import sys

import pytest
import torch

from sluice.trace.attach import traced
from sluice.trace.settings import TraceSettings
from sluice.trace.trace_reader import read_trace


@pytest.fixture(scope="module", autouse=True)
def _ignore_earlier_tests():
    """Hide objects of earlier tests and what they compiled.

    A trace searches all objects for optimizers, and observes less of a program that compiles. The
    objects stay frozen afterwards: a full collection of all that is imported takes a second.
    """
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    gc.collect()
    gc.freeze()


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
