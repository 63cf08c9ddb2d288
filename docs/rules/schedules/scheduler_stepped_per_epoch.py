"""Create a schedule of 160 steps, one per batch, but step it only once per epoch."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(512, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=160)
for _ in range(10):
    for rows, targets in DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True):
        optimizer.zero_grad()
        F.mse_loss(model(rows), targets).backward()
        optimizer.step()
    schedule.step()
