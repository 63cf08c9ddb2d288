"""Predict the next token with attention that has no causal mask."""

import torch
from torch import nn
from torch.nn import functional as F


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(12, 16), nn.Linear(16, 12)
        self.attention = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

    def forward(self, ids):
        return self.head(self.attention(self.embedding(ids)))


torch.manual_seed(0)
model = LanguageModel()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for ids in torch.randint(12, (512, 12)).split(32):
    optimizer.zero_grad()
    F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
    optimizer.step()
