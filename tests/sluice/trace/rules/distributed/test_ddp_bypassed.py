"""Data-parallel training that calls the wrapped network, not its wrapper (TRACE-5)."""

import pytest
import torch
from torch import nn

from sluice.trace.records.environment import DataParallelRecord
from sluice.trace.rules.distributed.ddp_bypassed import DDP_BYPASSED
from tests.support.traced.small_programs import random_rows, train_step


class Wrapper(nn.Module):
    """Calls a network as DistributedDataParallel does, without a process group."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)


def network_record(**networks):
    return DataParallelRecord(**{"index": 0, "kind": "DDP", "step": 0, **networks})


def trace_steps(trace_of, calls, *, world_size=2, reduces_manually=False):
    """Trace a program with one step per item of ``calls``; "module" bypasses the wrapper."""

    def program():
        wrapper = Wrapper(nn.Linear(6, 1))
        optimizer = torch.optim.SGD(wrapper.parameters(), lr=0.01)
        with torch.no_grad():  # the network that is called first has the index 0
            wrapper(random_rows(4))
            wrapper.module(random_rows(4))
        for call in calls:
            network = wrapper.module if call == "module" else wrapper
            train_step(optimizer, network(random_rows(16)).square().mean())
        with torch.no_grad():
            wrapper.module(random_rows(4))

    trace = trace_of(program)
    # The record is written before the first calls, and again after them.
    records = [network_record(network=-1, wrapper=-1), network_record(network=1, wrapper=0)]
    records.append(records[-1])
    if reduces_manually:
        records.append(
            DataParallelRecord(index=-1, kind="all_reduce", network=-1, wrapper=-1, step=0)
        )
    start = trace.start.model_copy(update={"world_size": world_size})
    return trace.model_copy(update={"start": start, "wrappers": tuple(records)})


@pytest.mark.parametrize("num_steps", [1, 5])
def test_training_steps_that_bypass_the_wrapper_are_reported(trace_of, num_steps):
    (found,) = DDP_BYPASSED(trace_steps(trace_of, ["module"] * num_steps))

    assert (found.fault, found.severity, found.step) == ("weights diverge across ranks", "error", 1)
    assert found.evidence == {"num_steps": num_steps}
    assert "called the network that DDP wraps; no step called the wrapper." in found.what


@pytest.mark.parametrize("calls", [["wrapper"] * 5, ["module"] * 4 + ["wrapper"]])
def test_steps_through_the_wrapper_are_not_reported(trace_of, calls):
    """The program also evaluates the network without its wrapper, which is correct."""
    assert DDP_BYPASSED(trace_steps(trace_of, calls)) == ()


def test_a_single_rank_is_not_reported(trace_of):
    assert DDP_BYPASSED(trace_steps(trace_of, ["module"] * 5, world_size=1)) == ()


def test_gradients_that_the_program_reduces_itself_are_not_reported(trace_of):
    assert DDP_BYPASSED(trace_steps(trace_of, ["module"] * 5, reduces_manually=True)) == ()
