"""Stack 16 sigmoid layers. The derivative of a sigmoid is at most 0.25."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
x = torch.randn(512, 8)
y = x.sum(1, keepdim=True)
layers = [layer for _ in range(16) for layer in (nn.Linear(8, 8), nn.Sigmoid())]
model = nn.Sequential(*layers, nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for rows in torch.arange(512).split(32):
    optimizer.zero_grad()
    F.mse_loss(model(x[rows]), y[rows]).backward()
    optimizer.step()
