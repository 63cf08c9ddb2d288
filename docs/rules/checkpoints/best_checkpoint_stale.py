"""Keep references to the best weights instead of a copy."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
x = torch.randn(512, 8)
y = torch.randn(512, 1)  # noise, so that the validation loss soon rises
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
best_loss, best = float("inf"), None
for _ in range(6):
    for rows in torch.arange(384).split(32):
        optimizer.zero_grad()
        F.mse_loss(model(x[rows]), y[rows]).backward()
        optimizer.step()
    with torch.no_grad():
        loss = F.mse_loss(model(x[384:]), y[384:]).item()
    if loss < best_loss:
        best_loss, best = loss, model.state_dict()
model.load_state_dict(best)
