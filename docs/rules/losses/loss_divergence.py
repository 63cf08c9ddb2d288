"""Raise the learning rate a thousandfold during training."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
x = torch.randn(512, 8)
y = x.sum(1, keepdim=True).tanh()
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
for step in range(240):
    if step == 120:
        optimizer.param_groups[0]["lr"] = 20.0
    rows = torch.randint(512, (32,))
    optimizer.zero_grad()
    F.mse_loss(model(x[rows]), y[rows]).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
