"""Compute the warmup with an integer division, which is 0 before step 1000."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
x = torch.randn(512, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, step // 1000))
for rows in torch.arange(512).split(16):
    optimizer.zero_grad()
    F.mse_loss(model(x[rows]), y[rows]).backward()
    optimizer.step()
    warmup.step()
