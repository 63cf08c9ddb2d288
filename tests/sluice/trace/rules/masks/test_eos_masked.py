"""End-of-sequence tokens that are masked out of the targets (TRACE-3)."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.support.traced.small_programs import fault_severities, root_causes, train_step


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


@pytest.mark.parametrize(
    ("texts", "is_wrong"),
    [("one stream", False), ("padded", False), ("EOS is padding", True)],
)
def test_shifted_targets_without_a_last_position_are_not_reported(trace_of, texts, is_wrong):
    """As in causal language models of transformers: the last position of each row has no target."""
    eos, pad = 1, 1 if texts == "EOS is padding" else 0

    def rows(generator):
        ids = torch.randint(2, 9, (8, 12), generator=generator)
        if texts == "one stream":
            return ids, ids
        for row, length in enumerate(torch.randint(5, 12, (8,), generator=generator).tolist()):
            ids[row, (11 if row == 0 else length) :] = pad
            ids[row, 11 if row == 0 else length] = eos
        return ids, ids.masked_fill(ids == pad, -100)

    def program():
        model = Mixing(looks_ahead=False)
        optimizer = torch.optim.Adam(model.parameters())
        generator = torch.Generator().manual_seed(6)
        for _ in range(8):
            ids, labels = rows(generator)
            targets = F.pad(labels, (0, 1), value=-100)[:, 1:]
            train_step(optimizer, F.cross_entropy(model(ids).flatten(0, 1), targets.flatten()))

    found = fault_severities(trace_of(program))

    assert found == ({("EOS token masked", "error")} if is_wrong else set())


def _mask_by_factor(values, counts):
    return (values * counts.float()).sum() / counts.sum()


def _mask_by_fill(values, counts):
    return values.masked_fill(~counts, 0.0).sum() / counts.sum()


def _mask_by_where(values, counts):
    return torch.where(counts, values, torch.zeros(())).sum() / counts.sum()


def _losses_by_gather(logits, targets):
    return -logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]


def _losses_by_cross_entropy(logits, targets):
    return F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")


@pytest.mark.parametrize("is_wrong", [True, False])
@pytest.mark.parametrize("mask", [_mask_by_factor, _mask_by_fill, _mask_by_where])
@pytest.mark.parametrize("loss_of", [_losses_by_gather, _losses_by_cross_entropy])
def test_an_eos_token_excluded_by_a_manual_mask_is_reported(trace_of, loss_of, mask, is_wrong):
    eos, pad = 1, 1 if is_wrong else 0

    def program():
        model, generator = Mixing(looks_ahead=False), torch.Generator().manual_seed(6)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(8):
            lengths = torch.randint(4, 11, (8,), generator=generator)
            width = int(lengths.max())
            ids = torch.randint(2, 9, (8, width + 1), generator=generator)
            for row, length in enumerate(lengths.tolist()):
                ids[row, length], ids[row, length + 1 :] = eos, pad
            inputs, targets = ids[:, :-1], ids[:, 1:]
            train_step(optimizer, mask(loss_of(model(inputs), targets), targets != pad))

    found = fault_severities(trace_of(program))
    assert (("EOS token masked", "error") in found) is is_wrong


class BatchNetwork(nn.Module):
    """A network that receives a whole batch dictionary, including labels."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 12))

    def forward(self, batch):
        return self.body(batch["words"])


@pytest.mark.parametrize("has_end", [True, False])
def test_a_missing_eos_token_is_reported_for_a_batch_dictionary(trace_of, has_end):
    pad, eos = 0, 1 if has_end else 0

    def program():
        model = BatchNetwork()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(4)
        for _ in range(4):
            words = torch.full((32, 9), pad)
            for row, length in zip(
                words, torch.randint(3, 9, (32,), generator=generator), strict=True
            ):
                row[:length] = torch.randint(2, 12, (int(length),), generator=generator)
                row[length] = eos
            targets = torch.where(words == pad, -100, words)[:, 1:]
            batch = {"sources": words.flip(0)[:, 1:], "words": words[:, :-1]}
            train_step(optimizer, F.cross_entropy(model(batch).flatten(0, 1), targets.flatten()))

    found = "EOS token masked" in {fault for fault, _ in fault_severities(trace_of(program))}
    assert found is not has_end


class ShiftingModel(nn.Module):
    """A language model that shifts its own input, so its targets equal its input."""

    def __init__(self):
        super().__init__()
        self.start = nn.Parameter(torch.zeros(1, 1, 16))
        self.table, self.body = nn.Embedding(30, 16), nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, 30)

    def forward(self, ids):
        shifted = torch.cat([self.start.expand(len(ids), 1, 16), self.table(ids[:, :-1])], 1)
        return self.head(self.body(shifted)[0])


@pytest.mark.parametrize("pad", [0, 1])
def test_an_eos_token_equal_to_padding_is_reported_if_the_network_shifts_its_input(trace_of, pad):
    generator, eos = torch.Generator().manual_seed(2), 0

    def batch():
        lengths = torch.randint(4, 11, (16,), generator=generator).tolist()
        rows = [[*torch.randint(2, 30, (n,), generator=generator).tolist(), eos] for n in lengths]
        width = max(map(len, rows))
        return torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows])

    def program():
        model = ShiftingModel()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(10):
            ids = batch()
            labels = ids.masked_fill(ids == pad, -100)
            optimizer.zero_grad()
            F.cross_entropy(model(ids).flatten(0, 1), labels.flatten()).backward()
            optimizer.step()

    found = {f for f in root_causes(trace_of(program)) if f[0] == "EOS token masked"}

    assert found == ({("EOS token masked", "error", 1)} if pad == eos else set())
