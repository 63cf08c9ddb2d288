"""Pass a mask that is True at tokens to a layer that expects True at padding."""

import torch
from torch import nn
from torch.nn import functional as F


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(12, 16), nn.Linear(16, 3)
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

    def forward(self, ids):
        return self.head(self.encoder(self.embedding(ids), src_key_padding_mask=ids != 0).mean(1))


torch.manual_seed(0)
model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
ids = torch.randint(1, 12, (256, 10)).masked_fill(torch.arange(10) >= 7, 0)
for rows in ids.split(32):
    optimizer.zero_grad()
    F.cross_entropy(model(rows), rows[:, 0] % 3).backward()
    optimizer.step()
