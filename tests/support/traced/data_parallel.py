"""Correct and faulty data-parallel programs."""

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def _rows(seed=0, num=256, labels=4):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num, 8, generator=generator)
    return TensorDataset(x, torch.randint(labels, (num,), generator=generator))


def _training_steps(model, optimizer, loader):
    """Train on all batches; yield after each backward pass, before the optimizer step."""
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        yield
        optimizer.step()


def manual_all_reduce(setup):
    torch.manual_seed(setup.seed)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.Adam(model.parameters())
    rows = _rows()
    shard = TensorDataset(*rows[setup.rank :: setup.num_ranks])
    torch.manual_seed(setup.rank)
    for _ in range(3):
        for _ in _training_steps(model, optimizer, DataLoader(shard, batch_size=16, shuffle=True)):
            for parameter in model.parameters():
                torch.distributed.all_reduce(parameter.grad)
                parameter.grad /= setup.num_ranks


def all_reduce_of_one_parameter(setup):
    """All-reduce the gradient of only one of the two parameters."""
    torch.manual_seed(setup.seed)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.Adam(model.parameters())
    shard = TensorDataset(*_rows()[setup.rank :: setup.num_ranks])
    for _ in _training_steps(model, optimizer, DataLoader(shard, batch_size=16, shuffle=True)):
        torch.distributed.all_reduce(model.weight.grad)


def same_validation_rows_on_all_ranks(setup):
    torch.manual_seed(setup.seed)
    model = DistributedDataParallel(nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = _rows()
    sampler = DistributedSampler(rows)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for _ in _training_steps(
            model, optimizer, DataLoader(rows, batch_size=16, sampler=sampler)
        ):
            pass
        with torch.no_grad():
            for x, _ in DataLoader(_rows(7), batch_size=64):
                model.module(x)


def independent_ranks(setup):
    """Train independent models with different learning rates on the same rows."""
    torch.manual_seed(setup.seed)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (setup.rank + 1))
    for _ in _training_steps(model, optimizer, DataLoader(_rows(), batch_size=16, shuffle=True)):
        pass


def different_shuffle_per_rank(setup):
    """Process all rows on every rank, in a different order. An epoch takes twice the work."""
    torch.manual_seed(setup.seed)
    model = DistributedDataParallel(nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(setup.rank)
    for _ in _training_steps(model, optimizer, DataLoader(_rows(), batch_size=16, shuffle=True)):
        pass


def sorted_shards(setup):
    """Sort the rows by label before sharding, so that the ranks have different labels."""
    torch.manual_seed(setup.seed)
    model = DistributedDataParallel(nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = _rows()[:]
    order = y.argsort()
    rank_rows = slice(setup.rank * 128, setup.rank * 128 + 128)
    shard = TensorDataset(x[order][rank_rows], y[order][rank_rows])
    for _ in _training_steps(model, optimizer, DataLoader(shard, batch_size=16, shuffle=True)):
        pass


def _shard_model(setup, *, uses_wrapper):
    torch.manual_seed(setup.seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    if uses_wrapper:
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    return fully_shard(model, mesh=init_device_mesh("cpu", (setup.num_ranks,)))


def _train_two_epochs(model, loader):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(2):
        for _ in _training_steps(model, optimizer, loader):
            pass


def fsdp_with_sampler(setup):
    model, rows = _shard_model(setup, uses_wrapper=True), _rows()
    sampler = DistributedSampler(rows)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for _ in _training_steps(
            model, optimizer, DataLoader(rows, batch_size=16, sampler=sampler)
        ):
            pass


def fully_shard_on_same_rows(setup):
    _train_two_epochs(
        _shard_model(setup, uses_wrapper=False), DataLoader(_rows(), 16, shuffle=True)
    )


def fsdp_on_same_rows(setup):
    _train_two_epochs(_shard_model(setup, uses_wrapper=True), DataLoader(_rows(), 16, shuffle=True))
