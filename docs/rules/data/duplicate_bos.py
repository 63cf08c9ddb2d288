"""Add a BOS token to texts that already have one."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(12, 16), nn.Linear(16, 12))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
ids = torch.randint(3, 12, (256, 10))
ids[:, 0] = 1  # BOS
ids[::2, 1] = 1  # a second BOS token in half of the texts
for rows in ids.split(32):
    optimizer.zero_grad()
    F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()).backward()
    optimizer.step()
