"""Causal networks that are trained to return their own input tokens."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.support.traced.small_programs import fault_severities, train_step

EXPECTED = {("targets not shifted", "error")}


class Reader(nn.Module):
    """Each output depends on the tokens up to its own, on earlier ones only, or on all tokens."""

    def __init__(self, dependence="own"):
        super().__init__()
        self.table, self.head = nn.Embedding(9, 8), nn.Linear(8, 9)
        self.dependence = dependence

    def forward(self, ids):
        embedded = self.table(ids)
        if self.dependence == "all":
            return self.head(embedded + embedded.mean(1, keepdim=True))
        past = embedded.cumsum(1)
        return self.head(past if self.dependence == "own" else F.pad(past, (0, 0, 1, -1)))


def make_program(model, targets_of=lambda ids: ids, **options):
    def program():
        optimizer = torch.optim.Adam(model.parameters())
        generator = torch.Generator().manual_seed(7)
        for _ in range(5):
            ids = torch.randint(9, (8, 12), generator=generator)
            logits = model(ids)
            targets = targets_of(ids)
            if targets.shape[1] < ids.shape[1]:
                logits = logits[:, : targets.shape[1]]
            train_step(optimizer, F.cross_entropy(logits.mT, targets, **options))

    return program


@pytest.mark.parametrize(
    ("dependence", "expected"), [("own", EXPECTED), ("earlier", set()), ("all", set())]
)
def test_only_a_causal_output_that_depends_on_its_target_is_reported(
    trace_of, dependence, expected
):
    assert fault_severities(trace_of(make_program(Reader(dependence)))) == expected


def test_a_recurrent_network_trained_on_its_own_input_is_reported(trace_of):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(9, 8), nn.Linear(16, 9)
            self.gru = nn.GRU(8, 16, batch_first=True)

        def forward(self, ids):
            return self.head(self.gru(self.table(ids))[0])

    assert fault_severities(trace_of(make_program(Recurrent()))) == EXPECTED


def test_shifted_targets_are_not_reported(trace_of):
    assert fault_severities(trace_of(make_program(Reader(), lambda ids: ids[:, 1:]))) == set()


def test_targets_that_differ_from_the_input_are_not_reported(trace_of):
    def reverse_tokens(ids):
        return ids.flip(1)

    assert fault_severities(trace_of(make_program(Reader(), reverse_tokens))) == set()


def test_ignored_padding_does_not_hide_the_fault(trace_of):
    def ignore_padding(ids):
        targets = ids.clone()
        targets[1::2, 9:] = -100
        return targets

    assert fault_severities(trace_of(make_program(Reader(), ignore_padding))) == EXPECTED
