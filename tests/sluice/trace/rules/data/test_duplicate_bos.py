"""Inputs that start with two BOS tokens (TRACE-3)."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.rules.library import judge
from tests.support.traced.small_programs import fault_severities, train_step

GENERATOR = torch.Generator().manual_seed(3)
"""Module-level generator, as in scripts that sample their batches with it."""


@pytest.mark.parametrize("num_bos", [1, 2])
def test_two_bos_tokens_in_the_decoder_input_are_reported(trace_of, num_bos):
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.out = nn.Embedding(9, 4), nn.Linear(4, 9)

        def forward(self, source, decoder_ids):
            return self.out(self.table(decoder_ids) + self.table(source).mean(1, keepdim=True))

    def program():
        model = Pair()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        source = torch.randint(2, 9, (16, 6), generator=GENERATOR)
        decoder_ids = torch.cat(
            [torch.ones(16, num_bos, dtype=torch.int64), source[:, :-num_bos]], 1
        )
        for _ in range(6):
            train_step(
                optimizer,
                F.cross_entropy(model(source, decoder_ids).flatten(0, 1), source.flatten()),
            )

    assert (("duplicate BOS token", "error") in fault_severities(trace_of(program))) is (
        num_bos == 2
    )


@pytest.mark.parametrize(("num_rows_without", "rows"), [(0, "All rows"), (1, "594 rows")])
def test_the_message_counts_the_rows_that_start_with_the_token(trace_of, num_rows_without, rows):
    def program():
        model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        tokens = torch.randint(2, 9, (100, 6), generator=GENERATOR)
        tokens[num_rows_without:, :2] = 1
        for _ in range(6):
            train_step(optimizer, F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()))

    (found,) = [f for f in judge(trace_of(program)) if f.fault == "duplicate BOS token"]

    assert f"twice. {rows} start with this token" in found.what
