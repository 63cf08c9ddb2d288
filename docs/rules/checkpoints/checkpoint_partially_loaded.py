"""Resume with the weights of a checkpoint, without its optimizer state."""

import tempfile

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
with tempfile.TemporaryFile() as file:
    for epoch in range(2):
        for x in torch.randn(512, 8).split(32):
            optimizer.zero_grad()
            (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
            optimizer.step()
        if epoch == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
            file.seek(0)
            model.load_state_dict(torch.load(file)["model"])
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
