"""Run every backward pass in no_sync(), so that gradients are never averaged."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(512, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x, y = x[dist.get_rank() :: 2], y[dist.get_rank() :: 2]
for rows in torch.arange(256).split(32) * 4:
    optimizer.zero_grad()
    with ddp.no_sync():
        F.mse_loss(ddp(x[rows]), y[rows]).backward()
    optimizer.step()
dist.destroy_process_group()
