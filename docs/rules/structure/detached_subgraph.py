"""Detach the output of the first layer."""

import torch
from torch import nn
from torch.nn import functional as F


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 32), nn.Linear(32, 1)

    def forward(self, x):
        return self.head(self.body(x).relu().detach())


torch.manual_seed(0)
x = torch.randn(512, 8)
y = x.sum(1, keepdim=True)
model = Network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for rows in torch.arange(512).split(32):
    optimizer.zero_grad()
    F.mse_loss(model(x[rows]), y[rows]).backward()
    optimizer.step()
