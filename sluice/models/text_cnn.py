"""Convolutional network for texts."""

import torch
from torch import Tensor, nn

from sluice.models.settings import ModelSettings

_KERNEL_TOKENS = 3
"""Number of consecutive tokens that a convolution combines."""


class TextCnn(nn.Module):
    """Network that maps the token ids (B, L) of texts, and their mask (B, L), to outputs (B, O).

    Shape legend: B = texts, L = tokens of the longest text, H = width, O = outputs.

    The last convolution is followed by the maximum over the tokens of a text. So the output depends
    neither on the length of the padding nor on the position of a phrase.

    Args:
        num_features: Size of the vocabulary.
        num_outputs: O.
        settings: ``hidden`` is H, and ``layers`` is the number of convolutions. ``dropout`` is
            applied after the embedding and before the linear layer.

    Source:
        Kim (2014), "Convolutional Neural Networks for Sentence Classification", EMNLP.
    """

    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:
        super().__init__()
        width = settings.hidden
        self.embedding = nn.Embedding(num_features, width)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(width, width, _KERNEL_TOKENS, padding=_KERNEL_TOKENS // 2)
            for _ in range(settings.layers)
        )
        self.drop = nn.Dropout(settings.dropout)
        self.head = nn.Linear(width, num_outputs)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the outputs (B, O)."""
        is_token_B1L = mask[:, None, :]
        # Padding tokens are zeroed before every convolution, so that they have the same effect as
        # the zeros with which Conv1d pads.
        hidden_BHL = self.drop(self.embedding(ids)).transpose(1, 2) * is_token_B1L
        for convolution in self.convolutions:
            hidden_BHL = torch.relu(convolution(hidden_BHL)) * is_token_B1L
        # After a ReLU no value is below 0, so the zeros of masked positions do not change the
        # maximum.
        output: Tensor = self.head(self.drop(hidden_BHL.amax(dim=2)))
        return output
