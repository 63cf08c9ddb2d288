"""Sort the rows by label, and train each rank on one half of them."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(1024, 8)
y = (x[:, 0] > 0).long()
half = y.argsort().chunk(2)[dist.get_rank()]
ddp = DistributedDataParallel(nn.Linear(8, 2))
optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-2)
for rows, labels in DataLoader(TensorDataset(x[half], y[half]), batch_size=32, shuffle=True):
    optimizer.zero_grad()
    F.cross_entropy(ddp(rows), labels).backward()
    optimizer.step()
dist.destroy_process_group()
