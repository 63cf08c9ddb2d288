"""Healthy language models: with a sparse embedding, or with tied input and output embeddings."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from sluice.bench.tracer.case import CaseSetup, HealthyCase
from sluice.bench.tracer.data import PAD, VOCAB_SIZE, sentences
from sluice.bench.tracer.nets import LanguageModel


class _NextTokenModel(nn.Module):
    """Predicts the next token from the current token; if recurrent, also from previous tokens."""

    def __init__(self, *, is_recurrent: bool, width: int = 24) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB_SIZE, width, sparse=True)
        self.body = nn.GRU(width, width, batch_first=True) if is_recurrent else None
        self.out = nn.Linear(width, VOCAB_SIZE)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        if self.body is not None:
            x, _ = self.body(x)
        output: Tensor = self.out(x)
        return output


class _Sentences(Dataset[list[int]]):
    def __init__(self, seed: int) -> None:
        self._sentences = sentences(seed)

    def __len__(self) -> int:
        return len(self._sentences)

    def __getitem__(self, row: int) -> list[int]:
        return self._sentences[row]


def _collate_next_tokens(batch: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Return padded inputs and targets: the next token of each input token, -100 at padding."""
    rows = [torch.tensor(sentence) for sentence in batch]
    ids = pad_sequence([row[:-1] for row in rows], batch_first=True, padding_value=PAD)
    return ids, pad_sequence([row[1:] for row in rows], batch_first=True, padding_value=-100)


def _loader(seed: int) -> DataLoader[Any]:
    return DataLoader(
        _Sentences(seed), batch_size=32, shuffle=True, collate_fn=_collate_next_tokens
    )


def sparse_embedding(setup: CaseSetup) -> list[nn.Module]:
    """Update a sparse embedding with SparseAdam and the rest with Adam."""
    torch.manual_seed(setup.seed)
    model = _NextTokenModel(is_recurrent=setup.net == "gru")
    embedding_parameters = [model.embedding.weight]
    other_parameters = [p for p in model.parameters() if p is not model.embedding.weight]
    optimizers: list[Any] = [
        torch.optim.SparseAdam(embedding_parameters, lr=2e-2),
        torch.optim.Adam(other_parameters, lr=1e-2),
    ]
    loader = _loader(setup.seed)
    for _ in range(4):
        for ids, targets in loader:
            loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
    return [model]


def tied_embeddings(setup: CaseSetup) -> list[nn.Module]:
    """Tie the input embedding to the output layer."""
    torch.manual_seed(setup.seed)
    model = LanguageModel(setup.net)
    model.head.weight = model.embedding.weight
    nn.init.normal_(model.embedding.weight, std=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    loader = _loader(setup.seed)
    for _ in range(4):
        for ids, targets in loader:
            optimizer.zero_grad()
            logits = model(ids, ids == PAD) if setup.net == "transformer" else model(ids)
            F.cross_entropy(logits.transpose(1, 2), targets).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return [model]


CASES = (
    HealthyCase(
        number=5,
        name="sparse embedding, SparseAdam",
        program=sparse_embedding,
        nets=("mlp", "gru"),
    ),
    HealthyCase(
        number=8, name="tied embeddings", program=tied_embeddings, nets=("gru", "transformer")
    ),
)
