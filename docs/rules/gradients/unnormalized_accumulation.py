"""Sum the gradients of four batches without dividing the loss."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(512, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
for _ in range(2):
    for batch, (rows, targets) in enumerate(loader, start=1):
        F.mse_loss(model(rows), targets).backward()
        if batch % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
