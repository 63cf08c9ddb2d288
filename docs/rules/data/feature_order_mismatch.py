"""Evaluate with two columns exchanged."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
x = torch.randn(512, 6) @ torch.randn(6, 6)  # correlated columns
x = (x - x.mean(0)) / x.std(0)
y = x[:, :1] - x[:, 1:2]
model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for rows in torch.arange(384).split(32):
    optimizer.zero_grad()
    F.mse_loss(model(x[rows]), y[rows]).backward()
    optimizer.step()
with torch.no_grad():
    F.mse_loss(model(x[384:, [1, 0, 2, 3, 4, 5]]), y[384:])
