"""Faults of masks: padding and future tokens."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from sluice.bench.tracer.case import CaseSetup, FaultCase
from sluice.bench.tracer.data import PAD, VOCAB_SIZE, sentences
from sluice.bench.tracer.faults.structure import pad_sentences
from sluice.bench.tracer.nets import LanguageModel

_SEARCHED_WORD = 5
"""Id of the word whose presence is the label of a sentence."""


class _BagOfTokens(nn.Module):
    """A small network per token, the mean over the real tokens, and a head."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB_SIZE, width)
        self.body = nn.Sequential(nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, 2)

    def forward(self, ids: Tensor, is_real: Tensor) -> Tensor:
        weights = is_real.unsqueeze(-1).float()
        x = self.body(self.embedding(ids)) * weights
        output: Tensor = self.head(x.sum(1) / weights.sum(1).clamp_min(1.0))
        return output


class _SelfAttention(nn.Module):
    """One attention layer, written as tensor operations, and a head on the first position."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB_SIZE, width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2))

    def forward(self, ids: Tensor, is_real: Tensor) -> Tensor:
        x = self.embedding(ids)
        scores = self.query(x) @ self.key(x).transpose(1, 2) / x.shape[-1] ** 0.5
        scores = scores.masked_fill(~is_real[:, None, :], float("-inf"))
        x = x + scores.softmax(-1) @ self.value(x)
        output: Tensor = self.head(x[:, 0])
        return output


class _Encoder(nn.Module):
    """A ``TransformerEncoder`` with a padding mask, the mean over real positions, and a head."""

    def __init__(self, *, is_inverted: bool, width: int = 32) -> None:
        super().__init__()
        self.is_inverted = is_inverted
        self.embedding = nn.Embedding(VOCAB_SIZE, width, padding_idx=PAD)
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, ids: Tensor, is_real: Tensor) -> Tensor:
        mask = is_real if self.is_inverted else ~is_real
        x = self.encoder(self.embedding(ids), src_key_padding_mask=mask)
        weights = is_real.unsqueeze(-1)
        output: Tensor = self.head((x * weights).sum(1) / weights.sum(1))
        return output


def padding_inverted(setup: CaseSetup) -> list[nn.Module]:
    """Classify whether a word is in a sentence, with an inverted padding mask."""
    torch.manual_seed(setup.seed)
    ids = pad_sentences(sentences(setup.seed), 20)
    labels = (ids == _SEARCHED_WORD).any(1).long()
    model: nn.Module
    if setup.net == "transformer":
        model = _Encoder(is_inverted=setup.has_fault)
    else:  # a convolutional network has no padding mask, so "cnn" trains self-attention
        model = _BagOfTokens() if setup.net == "mlp" else _SelfAttention()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(5):
        for x, y in DataLoader(TensorDataset(ids, labels), batch_size=48, shuffle=True):
            is_real = x != PAD
            if setup.has_fault and setup.net != "transformer":
                is_real = ~is_real
            optimizer.zero_grad()
            F.cross_entropy(model(x, is_real), y).backward()
            optimizer.step()
    return [model]


class _ConvLanguageModel(nn.Module):
    """A language model of two convolutions over the past; with the fault, also over the future."""

    def __init__(self, *, is_bidirectional: bool, width: int = 32) -> None:
        super().__init__()
        self.padding = (1, 1) if is_bidirectional else (2, 0)
        self.embedding = nn.Embedding(VOCAB_SIZE, width)
        self.layers = nn.ModuleList(nn.Conv1d(width, width, 3) for _ in range(2))
        self.head = nn.Linear(width, VOCAB_SIZE)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids).transpose(1, 2)
        for layer in self.layers:
            x = x + F.relu(layer(F.pad(x, self.padding)))
        output: Tensor = self.head(x.transpose(1, 2))
        return output


class _GruLanguageModel(nn.Module):
    """A language model that also returns its loss; with the fault, its GRU is bidirectional."""

    def __init__(self, *, is_bidirectional: bool, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB_SIZE, width)
        self.body = nn.GRU(width, width, batch_first=True, bidirectional=is_bidirectional)
        self.head = nn.Linear(width * (1 + is_bidirectional), VOCAB_SIZE)

    def forward(self, ids: Tensor, targets: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.body(self.embedding(ids))[0])
        loss = F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=PAD)
        return {"loss": loss, "logits": logits}


def model_not_causal(setup: CaseSetup) -> list[nn.Module]:
    """Train a language model that sees future tokens."""
    torch.manual_seed(setup.seed)
    ids = pad_sentences(sentences(setup.seed), 18)
    is_bidirectional = setup.has_fault
    models: dict[str, Callable[[], nn.Module]] = {
        "cnn": lambda: _ConvLanguageModel(is_bidirectional=is_bidirectional),
        "gru": lambda: _GruLanguageModel(is_bidirectional=is_bidirectional),
        "transformer": lambda: LanguageModel("transformer", is_causal=not is_bidirectional),
    }
    model = models[setup.net]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(72):
        rows = ids[step * 32 % 736 :][:32]  # begins again with the first row after 23 batches
        inputs, targets = rows[:, :-1], rows[:, 1:]
        if setup.net == "gru":
            loss = model(inputs, targets)["loss"]
        elif setup.net == "cnn":  # shifts the logits instead of the inputs
            logits = model(rows)[:, :-1]
            loss = F.cross_entropy(
                logits.reshape(-1, VOCAB_SIZE), targets.reshape(-1), ignore_index=PAD
            )
        else:
            log_likelihood = F.log_softmax(model(inputs), -1).gather(-1, targets[..., None])[..., 0]
            is_real = targets != PAD
            loss = -(log_likelihood * is_real).sum() / is_real.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [model]


MASK_CASES = (
    FaultCase(
        number=11,
        name="inverted padding mask",
        program=padding_inverted,
        correct_causes=frozenset({"inverted padding mask"}),
        max_late_steps=1,
        nets=("mlp", "cnn", "transformer"),
    ),
    FaultCase(
        number=12,
        name="no causal mask",
        program=model_not_causal,
        correct_causes=frozenset({"future token leak"}),
        max_late_steps=1,
        nets=("cnn", "gru", "transformer"),
    ),
)
