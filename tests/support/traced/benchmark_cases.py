"""Cases for tests of the fault benchmark, with programs that end in different ways."""

import time

import torch
from torch import nn

from sluice.bench.tracer.case import CaseSetup, FaultCase


def _train(setup: CaseSetup, num_steps: int = 6) -> list[nn.Module]:
    torch.manual_seed(setup.seed)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(setup.seed + setup.rank)
    for _ in range(num_steps):
        if not setup.has_fault:
            optimizer.zero_grad()
        model(torch.randn(8, 4, generator=generator)).square().mean().backward()
        optimizer.step()
    return [model]


def missing_zero_grad(setup):
    """Print a line and train; with the fault, never clear the gradients."""
    print("said by the program")
    return _train(setup)


def raises_error(setup):
    """Train, then raise an error."""
    _train(setup)
    raise ValueError("its own")


def exceeds_time_limit(setup):
    """Sleep for longer than the time limit, then train."""
    time.sleep(60)
    return _train(setup)


def exits_silently(setup):
    """End the process without output, like a crash in native code."""
    import os

    os._exit(7)


def random_weights(setup):
    """Compute different weights in every process."""
    torch.manual_seed(time.time_ns() % 2**32)
    return [nn.Linear(4, 2), *_train(setup)[:0]]


def sum_over_ranks(setup):
    """Sum over the ranks and train. The sum fails unless all ranks take part."""
    total = torch.tensor([float(setup.rank + 1)])
    torch.distributed.all_reduce(total)
    assert total.item() == 3.0, total
    return _train(setup)


def non_finite_gradient(setup):
    """Train; with the fault, on a square root whose gradient is not finite."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        x = model(torch.zeros(8, 4))
        ((x * 0).sqrt() if setup.has_fault else x.square()).sum().backward()
        optimizer.step()
    return [model]


def make_case(program, **fields):
    """Return a case whose correct cause is a missing zero_grad."""
    defaults = {
        "number": 1,
        "name": program.__name__,
        "program": program,
        "correct_causes": frozenset({"missing zero_grad"}),
        "max_late_steps": 1,
        "nets": ("mlp",),
        "required_severity": "confirm",
    }
    return FaultCase(**(defaults | fields))
