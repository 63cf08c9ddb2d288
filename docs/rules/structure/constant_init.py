"""Initialize all weights of a layer with the same value."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
x = torch.randn(512, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
nn.init.constant_(model[0].weight, 0.1)
nn.init.constant_(model[2].weight, 0.1)
nn.init.zeros_(model[0].bias)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for rows in torch.arange(512).split(32):
    optimizer.zero_grad()
    F.mse_loss(model(x[rows]), y[rows]).backward()
    optimizer.step()
