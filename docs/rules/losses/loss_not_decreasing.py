"""Train with a learning rate that is far too low."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(17)
x = torch.randn(512, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-8)
for _ in range(64):
    rows = torch.randint(512, (32,))
    optimizer.zero_grad()
    F.mse_loss(model(x[rows]), y[rows]).backward()
    optimizer.step()
