"""Padding in batch-first and sequence-first inputs, and unpadded texts with repeated tokens
(TRACE-4).
"""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.inspection.padding import find_padding, find_padding_candidates
from sluice.trace.rules.library import judge
from sluice.trace.rules.masks.inverted_padding_mask import INVERTED_PADDING_MASK

WORDS, WIDTH, STEPS = 40, 32, 12
PAD = 0


def corpus(kind, seed=1):
    generator = torch.Generator().manual_seed(seed)
    if kind == "Zipf distribution":
        probabilities = 1 / torch.arange(1, WORDS + 1).float()
        return torch.multinomial(probabilities, 4000, replacement=True, generator=generator)
    if kind == "each word four times":
        return torch.randint(WORDS, (1000,), generator=generator).repeat_interleave(4)
    return torch.randint(WORDS, (50,), generator=generator).repeat(80)


class LanguageModel(nn.Module):
    """Predicts the next token; sequence-first, without padding."""

    def __init__(self, *, tied):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.position = nn.Parameter(0.02 * torch.randn(64, 1, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 64, dropout=0.1)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids):
        mask = torch.log(torch.tril(torch.ones(len(ids), len(ids))))
        x = self.embedding(ids) * math.sqrt(WIDTH) + self.position[: len(ids)]
        return F.log_softmax(self.head(self.body(x, mask=mask)), dim=-1)


def make_program(words, *, batch, bptt, make_optimizer, tied):
    """Return a program that splits a corpus into columns and trains on consecutive pieces."""

    def program():
        torch.manual_seed(3)
        model = LanguageModel(tied=tied)
        text = corpus(words)
        columns = text[: len(text) // batch * batch].view(batch, -1).t().contiguous()
        optimizer = make_optimizer(model.parameters())
        for start in range(0, len(columns) - 1, bptt):
            ids = columns[start : start + min(bptt, len(columns) - 1 - start)]
            targets = columns[start + 1 : start + 1 + len(ids)].reshape(-1)
            optimizer.zero_grad()
            F.nll_loss(model(ids).view(-1, WORDS), targets).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()

    return program


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.5)


@pytest.mark.parametrize("words", ["Zipf distribution", "each word four times", "a repeated text"])
@pytest.mark.parametrize(
    ("batch", "bptt", "make_optimizer", "tied"),
    [
        (20, 35, adamw, True),
        (20, 20, sgd, False),
        (8, 16, adamw, False),
        (64, 12, sgd, True),
    ],
)
def test_a_sequence_first_language_model_has_no_padding(
    trace_of, words, batch, bptt, make_optimizer, tied
):
    program = make_program(words, batch=batch, bptt=bptt, make_optimizer=make_optimizer, tied=tied)

    assert [f.fault for f in judge(trace_of(program))] == []


def test_a_rare_token_of_adjacent_columns_is_not_padding(trace_of):
    """In the first piece the token is in the last columns only, like padding."""

    def program():
        model, generator = LanguageModel(tied=False), torch.Generator().manual_seed(4)
        optimizer = adamw(model.parameters())
        for _ in range(STEPS):
            text = torch.randint(WORDS - 1, (18, 12), generator=generator)
            text[1:4, -2:] = WORDS - 1
            optimizer.zero_grad()
            F.nll_loss(model(text[:-1]).view(-1, WORDS), text[1:].reshape(-1)).backward()
            optimizer.step()

    assert INVERTED_PADDING_MASK(trace_of(program)) == ()


class Encoder(nn.Module):
    """torch.nn.TransformerEncoder on padded rows, with the mean over the real tokens."""

    def __init__(self, *, batch_first, transposes):
        super().__init__()
        self.batch_first, self.transposes = batch_first, transposes
        self.embedding = nn.Embedding(WORDS, WIDTH)
        layer_batch_first = batch_first != transposes
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.0, batch_first=layer_batch_first)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, ids, mask):
        x = self.embedding(ids)
        x = x.transpose(0, 1) if self.transposes else x
        x = self.body(x, src_key_padding_mask=mask)
        x = x.transpose(0, 1) if self.transposes else x
        is_real = (ids != PAD).unsqueeze(-1)
        token_dim = 1 if self.batch_first else 0
        return self.head((x * is_real).sum(token_dim) / is_real.sum(token_dim))


def padded_rows(rows, positions):
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(3, WORDS, (rows, positions), generator=generator)
    lengths = torch.randint(3, positions - 1, (rows, 1), generator=generator)
    lengths[0] = positions
    return ids.where(torch.arange(positions) < lengths, PAD)


@pytest.mark.parametrize("is_inverted", [True, False], ids=["inverted", "correct"])
@pytest.mark.parametrize("transposes", [True, False], ids=["transposed", "not transposed"])
@pytest.mark.parametrize("batch_first", [True, False], ids=["rows first", "positions first"])
@pytest.mark.parametrize("rows", [24, 16], ids=["rectangular", "square"])
def test_an_inverted_mask_is_reported_in_either_layout(
    trace_of, rows, batch_first, transposes, is_inverted
):
    def program():
        model = Encoder(batch_first=batch_first, transposes=transposes)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        ids = padded_rows(rows, 16)
        labels = (ids == 5).any(1).long()
        mask = (ids != PAD) if is_inverted else (ids == PAD)
        for _ in range(STEPS):
            optimizer.zero_grad()
            F.cross_entropy(model(ids if batch_first else ids.T, mask), labels).backward()
            optimizer.step()

    found = [f.severity for f in INVERTED_PADDING_MASK(trace_of(program))]

    assert found == (["error"] if is_inverted else [])


class LastTokenModel(nn.Module):
    """Reads only the last token."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids):
        return self.head(self.embedding(ids)[:, -1])


def test_a_network_that_reads_only_the_last_token_has_no_mask(trace_of):
    def program():
        model, generator = LastTokenModel(), torch.Generator().manual_seed(2)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(STEPS):
            ids = torch.randint(5, WORDS, (16, 9), generator=generator)
            ids[:3, -2:] = 4  # a token that these rows share
            optimizer.zero_grad()
            F.cross_entropy(model(ids), (ids[:, -1] + 1) % WORDS).backward()
            optimizer.step()

    assert INVERTED_PADDING_MASK(trace_of(program)) == ()


def test_padding_is_a_token_that_occurs_only_at_the_ends_of_rows():
    ids = padded_rows(6, 9)
    inside = ids.clone()
    inside[0, 2] = PAD

    assert torch.equal(find_padding(((ids,), {})), ids == PAD)
    assert torch.equal(find_padding(((ids.flip(1),), {})), ids.flip(1) == PAD)
    assert torch.equal(find_padding(((ids.T,), {}), is_transposed=True), ids == PAD)
    assert find_padding(((inside,), {})) is None


def test_a_square_input_padded_in_both_layouts_is_ambiguous():
    ids = torch.randint(3, WORDS, (8, 8), generator=torch.Generator().manual_seed(1))
    ids[6:, 6:] = PAD

    assert find_padding(((ids,), {})) is not None
    assert find_padding_candidates(((ids,), {})) == ()
