"""Train on standardized rows, and evaluate on raw rows."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
raw = 5 + 3 * torch.randn(512, 8)
x = (raw - raw.mean(0)) / raw.std(0)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(3):
    for rows in torch.arange(384).split(32):
        optimizer.zero_grad()
        F.mse_loss(model(x[rows]), y[rows]).backward()
        optimizer.step()
    with torch.no_grad():
        F.mse_loss(model(raw[384:]), y[384:])
