"""Outputs that depend on later tokens (TRACE-4)."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.inspection import random_state
from sluice.trace.rules.library import judge
from tests.support.traced.small_programs import fault_severities, random_rows, train_step

GENERATOR = torch.Generator().manual_seed(3)
"""Module-level generator, as in scripts that sample their batches with it."""


class Mixing(nn.Module):
    """Each position depends on all positions, or only on earlier ones."""

    def __init__(self, *, looks_ahead):
        super().__init__()
        self.table, self.head = nn.Embedding(9, 8), nn.Linear(8, 9)
        self.looks_ahead = looks_ahead

    def forward(self, ids):
        embedded = self.table(ids)
        if self.looks_ahead:
            return self.head(embedded + embedded.mean(1, keepdim=True))
        return self.head(embedded.cumsum(1))


@pytest.mark.parametrize("looks_ahead", [True, False])
def test_a_module_level_generator_does_not_prevent_the_probe(trace_of, looks_ahead):
    """This module has a generator; the loss is computed with log_softmax and gather."""

    def program():
        model = Mixing(looks_ahead=looks_ahead)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(5):
            ids = torch.randint(9, (8, 12), generator=GENERATOR)
            logs = model(ids[:, :-1]).log_softmax(-1)
            train_step(optimizer, -logs.gather(2, ids[:, 1:, None]).mean())

    found = fault_severities(trace_of(program))

    assert found == ({("future token leak", "error")} if looks_ahead else set())


class Convolutions(nn.Module):
    """Returns (rows, tokens, positions), as cross entropy takes them."""

    def __init__(self, *, is_causal):
        super().__init__()
        self.table, self.conv, self.is_causal = nn.Embedding(9, 8), nn.Conv1d(8, 9, 3), is_causal

    def forward(self, ids):
        return self.conv(F.pad(self.table(ids).mT, (2, 0) if self.is_causal else (1, 1)))


@pytest.mark.parametrize("is_causal", [True, False])
def test_a_non_causal_convolution_is_reported_in_any_layout(trace_of, is_causal):
    def program():
        model = Convolutions(is_causal=is_causal)
        optimizer = torch.optim.Adam(model.parameters())
        generator = torch.Generator().manual_seed(7)
        for _ in range(5):
            ids = torch.randint(9, (8, 12), generator=generator)
            train_step(optimizer, F.cross_entropy(model(ids[:, :-1]), ids[:, 1:]))

    found = fault_severities(trace_of(program))

    assert found == (set() if is_causal else {("future token leak", "error")})


def test_a_generator_used_by_a_network_is_found():
    def noise(x):
        return x + torch.randn(x.shape, generator=GENERATOR)

    class Noisy(nn.Module):
        def forward(self, x):
            return self.change(x)

        def change(self, x):
            return noise(x)

    assert random_state.uses_shared_generator(nn.Sequential(Noisy()))
    assert not random_state.uses_shared_generator(Mixing(looks_ahead=True))


@pytest.mark.parametrize("looks_ahead", [True, False])
def test_a_forecast_that_depends_on_its_target_is_reported(trace_of, looks_ahead):
    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix, self.out = nn.Parameter(torch.randn(15, 15) / 4), nn.Linear(1, 1)
            self.register_buffer("seen", torch.ones(15, 15).tril(1 if looks_ahead else 0))

        def forward(self, x):
            return self.out((x @ (self.mix * self.seen).T)[..., None])[..., 0]

    def program():
        model, x = Mixer(), random_rows(16, 16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(6):
            train_step(optimizer, F.mse_loss(model(x[:, :-1]), x[:, 1:]))

    findings = [f for f in judge(trace_of(program)) if f.fault == "future token leak"]

    assert [f.severity for f in findings] == ["error"] * looks_ahead
    assert all("token" not in f.what for f in findings)  # a series has no tokens


class Reader(nn.Module):
    """Predicts the next token; has causal masks for some lengths only."""

    def __init__(self, lengths):
        super().__init__()
        self.padding_masks = {n: torch.full((n, n), -torch.inf).triu(1) for n in lengths}
        self.tokens, self.places = nn.Embedding(12, 16), nn.Embedding(24, 16)
        self.keys, self.values, self.out = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 12)

    def forward(self, ids):
        h = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        scores = h @ self.keys(h).transpose(1, 2) / 4
        mask = self.padding_masks.get(ids.shape[1])
        scores = scores if mask is None else scores + mask
        return self.out(h + scores.softmax(-1) @ self.values(h))


@pytest.mark.parametrize("lengths", [(8, 20), (8,)])
def test_a_causal_mask_too_short_for_longer_texts_is_reported(trace_of, lengths):
    def program():
        generator = torch.Generator().manual_seed(0)
        model = Reader(lengths)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for number in range(120):
            length = 8 if number < 70 else 20
            ids = torch.randint(12, (16, 1), generator=generator) + torch.arange(length + 1)
            ids = ids % 12
            out = model(ids[:, :-1]).flatten(0, 1)
            train_step(optimizer, F.cross_entropy(out, ids[:, 1:].flatten()))

    found = [f for f in judge(trace_of(program)) if f.severity == "error"]

    assert [(f.fault, f.step) for f in found] == [("future token leak", 71)] * (len(lengths) == 1)


class SequenceFirstReader(nn.Module):
    """The same network with sequence-first inputs, as in torch.nn.Transformer."""

    def __init__(self, lengths):
        super().__init__()
        self.reader = Reader(lengths)

    def forward(self, ids):
        return self.reader(ids.T).transpose(0, 1)


@pytest.mark.parametrize("lengths", [(8,), ()])
def test_a_missing_causal_mask_is_reported_for_sequence_first_texts(trace_of, lengths):
    def program():
        generator = torch.Generator().manual_seed(0)
        model = SequenceFirstReader(lengths)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(40):
            ids = torch.randint(12, (1, 16), generator=generator) + torch.arange(9)[:, None]
            ids = ids % 12
            out = model(ids[:-1]).flatten(0, 1)
            train_step(optimizer, F.cross_entropy(out, ids[1:].flatten()))

    found = [f.fault for f in judge(trace_of(program)) if f.severity == "error"]

    assert found == ["future token leak"] * (not lengths)


@pytest.mark.parametrize("is_inverted", [True, False])
def test_an_inverted_causal_mask_is_reported_although_evaluation_gives_nan(trace_of, is_inverted):
    """The last position attends to no other: NaN in evaluation mode, finite in training mode."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.table, self.head = nn.Embedding(9, 8), nn.Linear(8, 9)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

        def forward(self, ids):
            is_later = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
            mask = ~is_later if is_inverted else is_later
            return self.head(self.encoder(self.table(ids), mask=mask))

    def program():
        model = Attention()
        optimizer = torch.optim.Adam(model.parameters())
        generator = torch.Generator().manual_seed(7)
        for _ in range(5):
            ids = torch.randint(9, (8, 12), generator=generator)
            train_step(optimizer, F.cross_entropy(model(ids[:, :-1]).mT, ids[:, 1:]))
        with torch.no_grad():
            assert bool(model.eval()(ids).isnan().any()) is is_inverted

    found = fault_severities(trace_of(program))

    assert found == ({("future token leak", "error")} if is_inverted else set())
