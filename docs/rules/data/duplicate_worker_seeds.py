"""Draw noise in two workers from copies of one generator."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self):
        self.generator = torch.Generator().manual_seed(0)

    def __len__(self):
        return 256

    def __getitem__(self, row):
        return row / 256 + 0.1 * torch.randn(8, generator=self.generator)


model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loader = DataLoader(Noisy(), batch_size=32, num_workers=2, multiprocessing_context="fork")
for x in loader:
    optimizer.zero_grad()
    (model(x) - x.mean(1, keepdim=True)).square().mean().backward()
    optimizer.step()
