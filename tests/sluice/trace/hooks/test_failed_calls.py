"""Calls that raise an error, which the program catches."""

import contextlib

import pytest
import torch
from torch import nn
from torch.nn import functional as F


@pytest.mark.parametrize(
    "call",
    [
        lambda: F.cross_entropy(torch.tensor(1.0), torch.tensor(0)),
        lambda: F.embedding(torch.tensor([0]), torch.tensor(1.0)),
        lambda: nn.Linear(2, 1).load_state_dict(None),
    ],
    ids=["scalar instead of scores", "scalar instead of a table", "no state dict"],
)
def test_a_failed_call_does_not_end_the_trace(trace_of, call):
    def program():
        with contextlib.suppress(IndexError, RuntimeError, TypeError):
            call()
        weight = nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        weight.square().sum().backward()
        optimizer.step()

    trace = trace_of(program)
    assert not trace.notes
    assert trace.end.steps == 1


def test_a_failed_backward_pass_of_a_scaled_loss_does_not_mark_the_next_one(trace_of):
    def program():
        weight = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        with pytest.raises(RuntimeError, match="scalar"):
            torch.amp.GradScaler("cpu").scale(weight * 2).backward()
        weight.square().sum().backward()
        optimizer.step()

    events = [event for sequence in trace_of(program).sequences for event in sequence.events]
    flags_of_passes = [event.flags for event in events if event.kind == "backward"]
    assert len(flags_of_passes) == 1
    assert "scaled" not in flags_of_passes[0]
