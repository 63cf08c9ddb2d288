"""Data parallel programs that are right, though they look like one that is not."""

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def _rows(seed=0, num=256, labels=4):
    drawn = torch.Generator().manual_seed(seed)
    x = torch.randn(num, 8, generator=drawn)
    return TensorDataset(x, torch.randint(labels, (num,), generator=drawn))


def _learn(model, optimizer, loader, called=None):
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy((called or model)(x), y).backward()
        yield
        optimizer.step()


def gradients_reduced_by_hand(setup):
    torch.manual_seed(setup.seed)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.Adam(model.parameters())
    rows = _rows()
    own = TensorDataset(*rows[setup.rank :: setup.ranks])
    torch.manual_seed(setup.rank)
    for _ in range(3):
        for _ in _learn(model, optimizer, DataLoader(own, batch_size=16, shuffle=True)):
            for parameter in model.parameters():
                torch.distributed.all_reduce(parameter.grad)
                parameter.grad /= setup.ranks


def gradients_reduced_by_half(setup):
    """Forget one of the two parameters."""
    torch.manual_seed(setup.seed)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.Adam(model.parameters())
    own = TensorDataset(*_rows()[setup.rank :: setup.ranks])
    for _ in _learn(model, optimizer, DataLoader(own, batch_size=16, shuffle=True)):
        torch.distributed.all_reduce(model.weight.grad)


def all_judge_on_the_same_rows(setup):
    torch.manual_seed(setup.seed)
    model = DistributedDataParallel(nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = _rows()
    sampler = DistributedSampler(rows)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for _ in _learn(model, optimizer, DataLoader(rows, batch_size=16, sampler=sampler)):
            pass
        with torch.no_grad():
            for x, _ in DataLoader(_rows(7), batch_size=64):
                model.module(x)


def alone_together(setup):
    """Search two settings on the same rows: the ranks have nothing in common."""
    torch.manual_seed(setup.seed)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (setup.rank + 1))
    for _ in _learn(model, optimizer, DataLoader(_rows(), batch_size=16, shuffle=True)):
        pass


def shuffled_apart(setup):
    """Go through all rows on every rank, each in its own order: twice the work of an epoch."""
    torch.manual_seed(setup.seed)
    model = DistributedDataParallel(nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(setup.rank)
    for _ in _learn(model, optimizer, DataLoader(_rows(), batch_size=16, shuffle=True)):
        pass


def sorted_shards(setup):
    """Divide rows that are sorted by label."""
    torch.manual_seed(setup.seed)
    model = DistributedDataParallel(nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = _rows()[:]
    order = y.argsort()
    half = slice(setup.rank * 128, setup.rank * 128 + 128)
    own = TensorDataset(x[order][half], y[order][half])
    for _ in _learn(model, optimizer, DataLoader(own, batch_size=16, shuffle=True)):
        pass


def _sharded(setup, *, wraps):
    torch.manual_seed(setup.seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    if wraps:
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    return fully_shard(model, mesh=init_device_mesh("cpu", (setup.ranks,)))


def _learn_from(model, loader):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(2):
        for _ in _learn(model, optimizer, loader):
            pass


def shards_wrapped_on_rows_of_their_own(setup):
    model, rows = _sharded(setup, wraps=True), _rows()
    sampler = DistributedSampler(rows)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for _ in _learn(model, optimizer, DataLoader(rows, batch_size=16, sampler=sampler)):
            pass


def shards_on_the_same_rows(setup):
    _learn_from(_sharded(setup, wraps=False), DataLoader(_rows(), 16, shuffle=True))


def shards_wrapped_on_the_same_rows(setup):
    _learn_from(_sharded(setup, wraps=True), DataLoader(_rows(), 16, shuffle=True))
