"""Load a checkpoint whose keys have the prefix of a data parallel wrapper."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
x = torch.randn(512, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
checkpoint = {f"module.{name}": value.clone() for name, value in model.state_dict().items()}
model.load_state_dict(checkpoint, strict=False)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for rows in torch.arange(512).split(32):
    optimizer.zero_grad()
    F.mse_loss(model(x[rows]), y[rows]).backward()
    optimizer.step()
