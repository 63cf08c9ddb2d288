"""Train on a table in which one column was filled with zeros."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(1024, 8)
y = x.sum(1, keepdim=True)
x[:, 3] = 0
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for rows, targets in DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True):
    optimizer.zero_grad()
    F.mse_loss(model(rows), targets).backward()
    optimizer.step()
