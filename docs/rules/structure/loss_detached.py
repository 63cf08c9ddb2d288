"""Create a new tensor from the value of the loss."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
x = torch.randn(512, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for rows in torch.arange(512).split(32):
    optimizer.zero_grad()
    loss = F.mse_loss(model(x[rows]), y[rows])
    loss = torch.tensor(loss.item(), requires_grad=True)
    loss.backward()
    optimizer.step()
