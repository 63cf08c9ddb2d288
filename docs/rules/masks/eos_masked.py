"""Use the end token as padding, and mask the padding."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
END = 1
model = nn.Sequential(nn.Embedding(12, 16), nn.Linear(16, 12))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
ids = torch.randint(2, 12, (512, 12))
for row, length in enumerate(torch.randint(4, 11, (512,)).tolist()):
    ids[row, length:] = END  # one end token, then padding
targets = ids[:, 1:].clone()
targets[targets == END] = -100
for rows in torch.arange(512).split(32):
    optimizer.zero_grad()
    F.cross_entropy(model(ids[rows, :-1]).flatten(0, 1), targets[rows].flatten()).backward()
    optimizer.step()
