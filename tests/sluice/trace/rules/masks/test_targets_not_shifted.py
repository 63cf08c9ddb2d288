"""Causal networks that are trained to return the token that they receive."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.support.traced.small_programs import fault_severities, train_step

FOUND = {("targets not shifted", "error")}


class Reader(nn.Module):
    """Each output depends on the tokens up to its own, on earlier ones only, or on all tokens."""

    def __init__(self, sees="own"):
        super().__init__()
        self.table, self.head = nn.Embedding(9, 8), nn.Linear(8, 9)
        self.sees = sees

    def forward(self, ids):
        seen = self.table(ids)
        if self.sees == "all":
            return self.head(seen + seen.mean(1, keepdim=True))
        past = seen.cumsum(1)
        return self.head(past if self.sees == "own" else F.pad(past, (0, 0, 1, -1)))


def train(model, targets_of=lambda ids: ids, **options):
    def program():
        optimizer = torch.optim.Adam(model.parameters())
        draws = torch.Generator().manual_seed(7)
        for _ in range(5):
            ids = torch.randint(9, (8, 12), generator=draws)
            logits = model(ids)
            targets = targets_of(ids)
            if targets.shape[1] < ids.shape[1]:
                logits = logits[:, : targets.shape[1]]
            train_step(optimizer, F.cross_entropy(logits.mT, targets, **options))

    return program


@pytest.mark.parametrize(("sees", "expected"), [("own", FOUND), ("earlier", set()), ("all", set())])
def test_only_an_output_that_sees_its_target_and_no_later_token_is_reported(
    trace_of, sees, expected
):
    assert fault_severities(trace_of(train(Reader(sees)))) == expected


def test_recurrent_networks_are_reported(trace_of):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(9, 8), nn.Linear(16, 9)
            self.gru = nn.GRU(8, 16, batch_first=True)

        def forward(self, ids):
            return self.head(self.gru(self.table(ids))[0])

    assert fault_severities(trace_of(train(Recurrent()))) == FOUND


def test_shifted_targets_are_correct(trace_of):
    assert fault_severities(trace_of(train(Reader(), lambda ids: ids[:, 1:]))) == set()


def test_targets_that_differ_from_the_input_are_another_task(trace_of):
    """Tokens that are hidden in the input, as in a denoising network, are not copied."""

    def reversed_tokens(ids):
        return ids.flip(1)

    assert fault_severities(trace_of(train(Reader(), reversed_tokens))) == set()


def test_ignored_padding_does_not_hide_the_fault(trace_of):
    def padded(ids):
        targets = ids.clone()
        targets[1::2, 9:] = -100
        return targets

    assert fault_severities(trace_of(train(Reader(), padded))) == FOUND
