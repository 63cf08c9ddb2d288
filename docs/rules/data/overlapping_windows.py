"""Split the windows of a series at random."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(0)
series = torch.randn(1200).cumsum(0)
series = (series - series.mean()) / series.std()
windows = series.unfold(0, 30, 1)
data = TensorDataset(windows[:, :20], windows[:, 20:])
train, held_out = random_split(data, [900, len(data) - 900])
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(2):
    for x, y in DataLoader(train, batch_size=32, shuffle=True):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        for x, y in DataLoader(held_out, batch_size=64):
            F.mse_loss(model(x), y)
