"""Causal transformer: a language model."""

import math

import torch
from torch import Tensor, nn

from sluice.base.errors import SettingsError
from sluice.models.settings import ModelSettings, nearest_multiples
from sluice.models.transformer import encode_positions

_FEEDFORWARD_RATIO = 4
"""Number of hidden units of a layer's feedforward network, as a multiple of the width."""

_INIT_STD = 0.02
"""Standard deviation of the initial embedding. With PyTorch's default of 1, the first logits would
be large, because the head shares the weights of the embedding."""


class CausalTransformer(nn.Module):
    """Transformer that maps token ids (B, L) to the logits of each next token (B, L, V).

    Shape legend: B = texts or blocks, L = tokens, H = width, V = size of the vocabulary.

    The output at a position depends only on the tokens up to this position. The head shares the
    weights of the embedding. Position encodings are sines and cosines, so any length is possible.
    However, the network has not learned to use positions beyond the length of the training texts.

    Args:
        num_features: V.
        num_outputs: V.
        settings: ``hidden`` is H, a multiple of ``heads``. ``layers`` is the number of layers, and
            ``dropout`` is applied after the embedding and inside the layers.

    Raises:
        SettingsError: ``hidden`` is not a multiple of ``heads``, or the vocabularies of
            inputs and outputs have different sizes.

    Source:
        Radford et al. (2019), "Language Models are Unsupervised Multitask Learners"; for shared
        weights: Press and Wolf (2017), "Using the Output Embedding to Improve Language Models".
    """

    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:
        super().__init__()
        width, heads = settings.hidden, settings.heads
        if width % heads:
            raise SettingsError(
                "hidden must be a multiple of heads for CausalTransformer, got hidden "
                f"{width} with heads {heads}.",
                fix=f"Set hidden to {nearest_multiples(width, heads)}.",
            )
        if num_features != num_outputs:
            raise SettingsError(
                f"CausalTransformer requires one vocabulary, got {num_features} input and "
                f"{num_outputs} output tokens.",
                fix="Pass the size of the vocabulary for inputs and outputs.",
            )
        self.embedding = nn.Embedding(num_features, width)
        nn.init.normal_(self.embedding.weight, std=_INIT_STD)
        self.drop = nn.Dropout(settings.dropout)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width,
                heads,
                dim_feedforward=_FEEDFORWARD_RATIO * width,
                dropout=settings.dropout,
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )
            for _ in range(settings.layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_outputs, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits (B, L, V)."""
        length, width = ids.shape[1], self.embedding.embedding_dim
        # ``encode_positions`` encodes the distance to the last token. The flip turns this into the
        # distance to the first token.
        position_LH = encode_positions(length, width, device=ids.device).flip(0)
        hidden_BLH = self.drop(self.embedding(ids) * math.sqrt(width) + position_LH)
        future_LL = torch.ones(length, length, dtype=torch.bool, device=ids.device).triu(1)
        for layer in self.layers:
            hidden_BLH = layer(hidden_BLH, src_mask=future_LL, is_causal=True)
        logits: Tensor = self.head(self.norm(hidden_BLH))
        return logits
