"""Seed the sampler with the rank, so that each rank shuffles in another order."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(512, 8)
y = x.sum(1, keepdim=True)
ddp = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-2)
data = TensorDataset(x, y)
sampler = DistributedSampler(data, seed=dist.get_rank())
for epoch in range(3):
    sampler.set_epoch(epoch)
    for rows, targets in DataLoader(data, batch_size=32, sampler=sampler):
        optimizer.zero_grad()
        F.mse_loss(ddp(rows), targets).backward()
        optimizer.step()
dist.destroy_process_group()
