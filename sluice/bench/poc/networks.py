"""Healthy networks, ordinary and unusual. Each is constructed with (D, O, settings).

Shape legend: B = examples, L = sequence length, D = features, O = outputs, H = hidden units.
"""

import torch
from torch import Tensor, nn

from sluice.models.settings import ModelSettings

NUM_TOKENS = 17
NUM_POSITIONS = 64


class Mlp(nn.Module):
    """Maps the last row of (B, L, D) to (B, O): linear, activation, dropout, linear."""

    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:
        super().__init__()
        self.encoder = nn.Linear(num_features, settings.hidden)
        self.middle = self.make_middle(settings)
        self.head = nn.Linear(settings.hidden, num_outputs)

    def make_middle(self, settings: ModelSettings) -> nn.Module:
        """Return the module between the two linear layers, (B, H) to (B, H)."""
        return nn.Sequential(nn.ReLU(), nn.Dropout(settings.dropout))

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, O)."""
        output: Tensor = self.head(self.middle(self.encoder(x[:, -1])))
        return output


class MlpWithoutOutputAxis(Mlp):
    """Has an output of shape (B,), for targets of shape (N,)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (B,)."""
        return super().forward(x).squeeze(-1)


class TanhMlp(Mlp):
    """Has activations that saturate."""

    def make_middle(self, settings: ModelSettings) -> nn.Module:
        """Return tanh and dropout."""
        return nn.Sequential(nn.Tanh(), nn.Dropout(settings.dropout))


class NormMlp(Mlp):
    """Has layer norm and GELU between the linear layers."""

    def make_middle(self, settings: ModelSettings) -> nn.Module:
        """Return normalisation, activation and dropout."""
        return nn.Sequential(nn.LayerNorm(settings.hidden), nn.GELU(), nn.Dropout(settings.dropout))


class BatchNormMlp(Mlp):
    """Has batch norm after a layer with a bias. The gradient of this bias is 0 by construction."""

    def make_middle(self, settings: ModelSettings) -> nn.Module:
        """Return normalisation, activation and dropout."""
        return nn.Sequential(
            nn.BatchNorm1d(settings.hidden), nn.ReLU(), nn.Dropout(settings.dropout)
        )


class DeepMlp(Mlp):
    """Has three more hidden layers."""

    def make_middle(self, settings: ModelSettings) -> nn.Module:
        """Return layers and activations in turn."""
        width = settings.hidden
        layers = [module for _ in range(3) for module in (nn.ReLU(), nn.Linear(width, width))]
        return nn.Sequential(*layers, nn.ReLU())


class SparseMlp(Mlp):
    """Has biases so low that about 70 % of the units are inactive for an example."""

    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:
        super().__init__(num_features, num_outputs, settings)
        nn.init.constant_(self.encoder.bias, -0.3)


class ZeroGatedResidual(Mlp):
    """Has residual branches with gates that start at 0: at first, branches get no gradient."""

    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:
        super().__init__(num_features, num_outputs, settings)
        self.branches = nn.ModuleList(nn.Linear(settings.hidden, settings.hidden) for _ in range(2))
        self.gates = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, O)."""
        state = self.middle(self.encoder(x[:, -1]))
        for gate, branch in zip(self.gates, self.branches, strict=True):
            state = state + gate * torch.tanh(branch(state))
        output: Tensor = self.head(state)
        return output


class ZeroHead(Mlp):
    """The last layer starts at 0, so the layers before it get no gradient at first."""

    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:
        super().__init__(num_features, num_outputs, settings)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)


class Lora(Mlp):
    """Adds a trained low-rank matrix to a frozen encoder. Its second factor starts at 0."""

    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:
        super().__init__(num_features, num_outputs, settings)
        self.encoder.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(4, num_features) / num_features**0.5)
        self.lora_b = nn.Parameter(torch.zeros(settings.hidden, 4))

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, O)."""
        last_row = x[:, -1]
        state = self.encoder(last_row) + last_row @ self.lora_a.T @ self.lora_b.T
        output: Tensor = self.head(self.middle(state))
        return output


class FrozenEncoder(Mlp):
    """Trains only the head, on the random features of a frozen encoder."""

    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:
        super().__init__(num_features, num_outputs, settings)
        self.encoder.requires_grad_(False)


class Experts(nn.Module):
    """Has four experts. The router selects one for each example, but never the last one."""

    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:
        super().__init__()
        self.num_outputs = num_outputs
        self.experts = nn.ModuleList(Mlp(num_features, num_outputs, settings) for _ in range(4))
        self.router = nn.Linear(num_features, 4)
        with torch.no_grad():
            self.router.bias[3] = -50.0

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, O)."""
        probability = self.router(x[:, -1]).softmax(dim=1)
        best = probability.argmax(dim=1)
        output = torch.zeros(len(x), self.num_outputs)
        for index, expert in enumerate(self.experts):
            is_chosen = best == index
            if is_chosen.any():
                expert_output = expert(x[is_chosen]) * probability[is_chosen, index, None]
                output = output.index_put((is_chosen,), expert_output)
        return output


class Attention(nn.Module):
    """One transformer layer with learned position embeddings, then the mean over the sequence."""

    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:
        super().__init__()
        width = settings.hidden
        self.encoder = nn.Linear(num_features, width)
        self.positions = nn.Parameter(0.02 * torch.randn(NUM_POSITIONS, width))
        self.layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, settings.dropout, batch_first=True, norm_first=True
        )
        self.head = nn.Linear(width, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, O) for sequences (B, L, D)."""
        state = self.layer(self.encoder(x) + self.positions[: x.shape[1]])
        output: Tensor = self.head(state.mean(dim=1))
        return output


class ConvNet(nn.Module):
    """Two convolutions for images (B, 1, 8, 8)."""

    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:
        super().__init__()
        width = settings.hidden
        self.body = nn.Sequential(
            self.make_input(),
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(settings.dropout),
        )
        self.head = nn.Linear(width * (num_features // 2) ** 2, num_outputs)

    def make_input(self) -> nn.Module:
        """Return the module before the first convolution."""
        return nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, O)."""
        output: Tensor = self.head(self.body(x))
        return output


class InputNormConvNet(ConvNet):
    """Normalises raw pixels with batch norm."""

    def make_input(self) -> nn.Module:
        """Return batch norm."""
        return nn.BatchNorm2d(1)


class TokenMean(nn.Module):
    """Embeds (token, position) pairs, many of which are rare, and averages them."""

    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_TOKENS * num_features, settings.hidden)
        self.norm = nn.LayerNorm(settings.hidden)
        self.head = nn.Linear(settings.hidden, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, O) for tokens (B, L)."""
        pair_ids = x + NUM_TOKENS * torch.arange(x.shape[1])
        output: Tensor = self.head(self.norm(self.embedding(pair_ids).mean(dim=1)))
        return output


class TiedTokens(nn.Module):
    """Treats classes as tokens, too. One matrix embeds the input and scores the output."""

    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:
        super().__init__()
        self.num_outputs = num_outputs
        self.embedding = nn.Embedding(NUM_TOKENS + num_outputs, settings.hidden)
        nn.init.normal_(self.embedding.weight, std=0.3)
        self.score = nn.Linear(settings.hidden, NUM_TOKENS + num_outputs)
        self.score.weight = self.embedding.weight
        self.mix = nn.Linear(num_features * settings.hidden, settings.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, O) for tokens (B, L)."""
        state = torch.relu(self.mix(self.embedding(x).flatten(1)))
        output: Tensor = self.score(state)[:, -self.num_outputs :]
        return output
