"""Take the logarithm of an output that becomes 0."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(512, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1), nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for rows in torch.arange(512).split(32):
    optimizer.zero_grad()
    loss = (model(x[rows]) - torch.log(model(x[rows]))).mean()
    loss.backward()
    optimizer.step()
