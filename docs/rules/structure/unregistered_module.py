"""Keep layers in a Python list instead of a ModuleList."""

import torch
from torch import nn
from torch.nn import functional as F


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = [nn.Linear(8, 8), nn.Linear(8, 1)]
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        return self.blocks[1](self.norm(self.blocks[0](x)))


torch.manual_seed(0)
x = torch.randn(512, 8)
model = Network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for rows in x.split(32):
    optimizer.zero_grad()
    F.mse_loss(model(rows), rows.sum(1, keepdim=True)).backward()
    optimizer.step()
