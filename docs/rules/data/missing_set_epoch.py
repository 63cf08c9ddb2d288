"""Use a DistributedSampler without set_epoch()."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.manual_seed(0)
x = torch.randn(512, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
data = TensorDataset(x, y)
sampler = DistributedSampler(data, num_replicas=1, rank=0, shuffle=True)
loader = DataLoader(data, batch_size=32, sampler=sampler)
for _ in range(3):
    for rows, targets in loader:
        optimizer.zero_grad()
        F.mse_loss(model(rows), targets).backward()
        optimizer.step()
