"""Step before the backward pass."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
x = torch.randn(512, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for rows in torch.arange(512).split(32):
    loss = F.mse_loss(model(x[rows]), y[rows])
    optimizer.step()
    optimizer.zero_grad()
    loss.backward()
