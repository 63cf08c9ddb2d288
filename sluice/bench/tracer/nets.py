"""The small networks of the fault benchmark."""

import torch
from torch import Tensor, nn

from sluice.bench.tracer.case import NetName
from sluice.bench.tracer.data import VOCAB_SIZE


class GRUClassifier(nn.Module):
    """A GRU over time steps of ``num_columns`` values, and a linear head on its last state."""

    def __init__(self, num_outputs: int, *, num_columns: int = 8, hidden: int = 32) -> None:
        super().__init__()
        self.encoder = nn.GRU(num_columns, hidden, batch_first=True)
        self.head = nn.Linear(hidden, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return (rows, num_outputs)."""
        states, _ = self.encoder(x)
        output: Tensor = self.head(states[:, -1])
        return output


class TransformerClassifier(nn.Module):
    """A transformer with two layers over eight time steps, and a linear head on its mean output."""

    def __init__(self, num_outputs: int, *, num_columns: int = 8, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Linear(num_columns, width)
        self.position = nn.Parameter(torch.randn(8, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return (rows, num_outputs)."""
        output: Tensor = self.head(self.encoder(self.embedding(x) + self.position).mean(1))
        return output


class LanguageModel(nn.Module):
    """Predicts the next token with a GRU (if ``net`` is ``gru``) or a transformer.

    ``is_causal`` decides whether the transformer has a causal mask. A GRU needs no mask.
    """

    def __init__(
        self, net: NetName, *, vocab_size: int = VOCAB_SIZE, width: int = 32, is_causal: bool = True
    ) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.embedding = nn.Embedding(vocab_size, width)
        self.position = nn.Parameter(torch.randn(64, width) * 0.02)
        self.body: nn.Module
        if net == "gru":
            self.body = nn.GRU(width, width, batch_first=True)
        else:
            layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
            self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocab_size)

    def forward(self, ids: Tensor, padding: Tensor | None = None) -> Tensor:
        """Return logits (rows, positions, vocab_size); ``padding`` is True at padded positions."""
        length = ids.shape[1]
        x = self.embedding(ids) + self.position[:length]
        if isinstance(self.body, nn.GRU):
            states = self.body(x)[0]
        else:
            mask = torch.ones(length, length, dtype=torch.bool).triu(1) if self.is_causal else None
            states = self.body(x, mask=mask, src_key_padding_mask=padding)
        output: Tensor = self.head(states)
        return output


def classifier(net: NetName, num_outputs: int = 10) -> nn.Module:
    """Return a network for the inputs of ``data.digits``; its output is (rows, num_outputs)."""
    if net == "mlp":
        return nn.Sequential(
            nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, num_outputs)
        )
    if net == "cnn":
        return nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(24 * 4, num_outputs),
        )  # fmt: skip
    return GRUClassifier(num_outputs) if net == "gru" else TransformerClassifier(num_outputs)
