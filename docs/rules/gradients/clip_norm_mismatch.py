"""Clip gradients to a norm of 0.001, which is far below their usual norm."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
x = torch.randn(512, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for rows in torch.arange(512).split(32) * 4:
    optimizer.zero_grad()
    F.mse_loss(model(x[rows]), y[rows]).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    optimizer.step()
