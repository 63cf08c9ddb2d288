"""Evaluate on rows that are also training rows."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset

torch.manual_seed(0)
x = torch.randn(512, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
data = TensorDataset(x, y)
train, held_out = Subset(data, range(400)), Subset(data, range(350, 512))
for _ in range(3):
    for rows, targets in DataLoader(train, batch_size=32, shuffle=True):
        optimizer.zero_grad()
        F.mse_loss(model(rows), targets).backward()
        optimizer.step()
    with torch.no_grad():
        for rows, targets in DataLoader(held_out, batch_size=54):
            F.mse_loss(model(rows), targets)
