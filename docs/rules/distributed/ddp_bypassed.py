"""Call the wrapped network instead of its data parallel wrapper."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(512, 8)
y = x.sum(1, keepdim=True)
ddp = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)))
optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-2)
x, y = x[dist.get_rank() :: 2], y[dist.get_rank() :: 2]
for rows in torch.arange(256).split(32):
    optimizer.zero_grad()
    F.mse_loss(ddp.module(x[rows]), y[rows]).backward()
    optimizer.step()
dist.destroy_process_group()
