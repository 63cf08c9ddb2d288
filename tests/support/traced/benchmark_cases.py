"""Cases for the harness of the fault benchmark, of which each ends in its own way."""

import time

import torch
from torch import nn

from sluice.bench.tracer.case import FaultCase, Setup


def _steps(setup: Setup, num: int = 6) -> list[nn.Module]:
    torch.manual_seed(setup.seed)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    own = torch.Generator().manual_seed(setup.seed + setup.rank)
    for _ in range(num):
        if not setup.has_fault:
            optimizer.zero_grad()
        model(torch.randn(8, 4, generator=own)).square().mean().backward()
        optimizer.step()
    return [model]


def carries(setup):
    """Never clear gradients, when it has its fault."""
    print("said by the program")
    return _steps(setup)


def stops(setup):
    """Raise after a few steps."""
    _steps(setup)
    raise ValueError("its own")


def sleeps(setup):
    """Take longer than the limit."""
    time.sleep(60)
    return _steps(setup)


def dies(setup):
    """End without a word, as a crash of a library does."""
    import os

    os._exit(7)


def differs(setup):
    """Compute something else in every process."""
    torch.manual_seed(time.time_ns() % 2**32)
    return [nn.Linear(4, 2), *_steps(setup)[:0]]


def together(setup):
    """Add up the ranks; every one must know how many there are."""
    total = torch.tensor([float(setup.rank + 1)])
    torch.distributed.all_reduce(total)
    assert total.item() == 3.0, total
    return _steps(setup)


def not_a_number(setup):
    """Take a root whose slope is not finite."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        x = model(torch.zeros(8, 4))
        ((x * 0).sqrt() if setup.has_fault else x.square()).sum().backward()
        optimizer.step()
    return [model]


def case(program, **fields):
    """Return a case whose right answer is that gradients are carried over."""
    given = {
        "number": 1,
        "name": program.__name__,
        "program": program,
        "answers": frozenset({"gradients carried over"}),
        "within": 1,
        "nets": ("mlp",),
        "needs": "confirm",
    }
    return FaultCase(**(given | fields))
