"""Custom attention with an inverted padding mask (TRACE-4)."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.support.traced.small_programs import fault_severities, train_step

GENERATOR = torch.Generator().manual_seed(3)
"""Module-level generator, as in scripts that sample their batches with it."""


@pytest.mark.parametrize("form", ["mask of torch", "manual scores"])
@pytest.mark.parametrize("is_inverted", [True, False])
def test_custom_attention_to_padding_only_is_reported(trace_of, form, is_inverted):
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.out = nn.Embedding(12, 8), nn.Linear(8, 3)

        def forward(self, ids):
            x, pad = self.table(ids), ids == 0
            is_visible = pad if is_inverted else ~pad
            if form == "mask of torch":
                mixed = F.scaled_dot_product_attention(x, x, x, attn_mask=is_visible[:, None, :])
            else:
                scores = (x @ x.transpose(1, 2)).masked_fill(~is_visible[:, None, :], -1e9)
                mixed = scores.softmax(-1) @ x
            return self.out((x + mixed).mean(1))

    def program():
        model = Network()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        ids = torch.randint(1, 12, (24, 10), generator=GENERATOR)
        for row, length in enumerate(torch.randint(3, 9, (24,), generator=GENERATOR).tolist()):
            ids[row, length:] = 0
        for _ in range(6):
            train_step(optimizer, F.cross_entropy(model(ids), ids[:, 0] % 3))

    found = {f for f in fault_severities(trace_of(program)) if f[0] == "inverted padding mask"}
    assert found == ({("inverted padding mask", "error")} if is_inverted else set())
