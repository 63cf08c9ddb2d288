"""Records of learning-rate schedulers."""

import torch
from torch import nn

from sluice.trace.attach import traced
from sluice.trace.settings import TraceSettings
from sluice.trace.trace_reader import read_trace


def step_scheduler(*, past_steps, is_loaded):
    """Make one traced step of a scheduler that made some steps before the trace."""
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)
    optimizer.step()
    if is_loaded:
        scheduler.load_state_dict({**scheduler.state_dict(), "last_epoch": past_steps})
    scheduler.step()


def test_the_start_of_a_scheduler_is_its_number_of_steps_before_the_trace(tmp_path):
    for past_steps, is_loaded in ((0, False), (1, True), (7, True)):
        with traced(tmp_path, TraceSettings()) as folder:
            step_scheduler(past_steps=past_steps, is_loaded=is_loaded)

        (record,) = read_trace(folder).schedulers
        assert record.start == past_steps
