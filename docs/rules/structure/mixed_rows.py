"""Classify series with a recurrent layer that treats the rows of a batch as time steps."""

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.head = nn.GRU(4, 16), nn.Linear(16, 2)  # without batch_first=True

    def forward(self, x):
        return self.head(self.gru(x)[0][:, -1])


torch.manual_seed(0)
model, loss_fn = Classifier(), nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
series = torch.randn(512, 10, 4)
labels = (series.sum((1, 2)) > 0).long()
for rows in torch.randperm(512).split(32):
    optimizer.zero_grad()
    loss_fn(model(series[rows]), labels[rows]).backward()
    optimizer.step()
