"""Evaluate without calling eval()."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(512, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(3):
    for rows, targets in DataLoader(TensorDataset(x[:384], y[:384]), batch_size=32, shuffle=True):
        optimizer.zero_grad()
        F.mse_loss(model(rows), targets).backward()
        optimizer.step()
    with torch.no_grad():
        for rows, targets in DataLoader(TensorDataset(x[384:], y[384:]), batch_size=64):
            F.mse_loss(model(rows), targets)
