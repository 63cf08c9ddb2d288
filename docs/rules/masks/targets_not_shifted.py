"""Train a causal language model to return its own input: the targets are not shifted."""

import torch
from torch import nn
from torch.nn import functional as F


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(12, 16), nn.Linear(16, 12)
        self.gru = nn.GRU(16, 16, batch_first=True)

    def forward(self, ids):
        return self.head(self.gru(self.embedding(ids))[0])


torch.manual_seed(0)
model = LanguageModel()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for ids in torch.randint(12, (512, 12)).split(32):
    optimizer.zero_grad()
    F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
    optimizer.step()
