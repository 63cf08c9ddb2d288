"""Buffers that follow the data, such as batch norm's running statistics, brought to where it is.

Until they have seen data, a network in eval mode is another one than it will be; its loss moves
with them although no weight does.
"""

import copy

import torch
from torch import nn

from sluice.base.seeding import Stream
from sluice.workloads.workload import Examples


def settled(
    model: nn.Module, examples: Examples, *, batch_rows: int, num_passes: int, seed: int
) -> nn.Module:
    """Return a copy of ``model`` whose buffers have seen the examples, and whose weights are equal.

    The model itself and the caller's random generators are left as they are. A model without
    such buffers costs one forward pass.

    Args:
        model: Left in the mode it is in.
        examples: What to show it.
        batch_rows: Examples per forward pass.
        num_passes: Forward passes. Batch norm moves a tenth of the way at each, so 1.5 % of where
            it began is left after 40.
        seed: Seeds dropout.
    """
    shown = copy.deepcopy(model)
    shown.train()
    before = [buffer.clone() for buffer in shown.buffers()]
    parts = examples.x.split(batch_rows)
    # A last part of one example has no deviation to follow.
    parts = tuple(part for part in parts if len(part) > 1) or parts
    with Stream(seed).active(), torch.no_grad():
        for index in range(num_passes):
            shown(parts[index % len(parts)])
            if all(map(torch.equal, before, shown.buffers())):
                break
    shown.train(model.training)
    return shown
