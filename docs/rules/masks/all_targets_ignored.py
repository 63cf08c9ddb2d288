"""Truncate the answers, so that only prompts remain, whose targets are ignored."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(12, 16), nn.Linear(16, 12))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
ids = torch.randint(1, 12, (256, 10))
targets = ids.clone()
targets[:, :8] = -100  # the prompt
for step, rows in enumerate(torch.arange(256).split(16)):
    length = 10 if step < 8 else 8  # the later rows are truncated
    optimizer.zero_grad()
    logits = model(ids[rows, :length])
    F.cross_entropy(logits.flatten(0, 1), targets[rows, :length].flatten()).backward()
    optimizer.step()
