"""Load all rows on every rank."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(512, 8)
y = x.sum(1, keepdim=True)
ddp = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-2)
for _ in range(2):
    for rows, targets in DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True):
        optimizer.zero_grad()
        F.mse_loss(ddp(rows), targets).backward()
        optimizer.step()
dist.destroy_process_group()
