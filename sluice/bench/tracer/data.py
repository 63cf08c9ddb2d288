"""Small data sets that can be learned in a few hundred steps."""

from functools import cache

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from sluice.bench.tracer.case import NetName

DIGITS_ROWS = 1797
_VALIDATION_ROWS = 360
END, BEGIN, PAD = 1, 2, 0
"""Special tokens of ``sentences``; words are numbered from 3."""
WORDS = 24
"""Number of words of ``sentences``."""


@cache
def _digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    digits_data = load_digits()
    return torch.tensor(digits_data.data, dtype=torch.float32) / 16, torch.tensor(
        digits_data.target
    )


def digits(net: NetName, seed: int) -> tuple[TensorDataset, TensorDataset]:
    """Return scikit-learn's digits for training and validation, split by the seed.

    Inputs are in [0, 1]: (rows, 64) for an mlp, (rows, 1, 8, 8) for a cnn, (rows, 8, 8) for the
    others, as eight steps of eight values. Targets are integers from 0 to 9.
    """
    inputs, targets = _digits()
    shape = {"mlp": (64,), "cnn": (1, 8, 8), "gru": (8, 8), "transformer": (8, 8)}[net]
    order = torch.randperm(DIGITS_ROWS, generator=torch.Generator().manual_seed(seed))
    inputs, targets = inputs[order].reshape(-1, *shape), targets[order]
    num_held_out = _VALIDATION_ROWS
    return TensorDataset(inputs[num_held_out:], targets[num_held_out:]), TensorDataset(
        inputs[:num_held_out], targets[:num_held_out]
    )


def table(seed: int, *, rows: int = 1536, columns: int = 12) -> tuple[TensorDataset, TensorDataset]:
    """Return standard normal columns and a noisy smooth target of shape (rows,).

    Three quarters of the rows are for training and one quarter for validation.
    """
    generator = torch.Generator().manual_seed(1000 + seed)
    inputs = torch.randn(rows, columns, generator=generator)
    weights = torch.randn(columns, 2, generator=generator) / columns**0.5
    hidden = inputs @ weights
    noise = 0.3 * torch.randn(rows, generator=generator)
    targets = hidden[:, 0] + torch.tanh(2 * hidden[:, 1]) + noise
    num_training = rows * 3 // 4
    return TensorDataset(inputs[:num_training], targets[:num_training]), TensorDataset(
        inputs[num_training:], targets[num_training:]
    )


def sentences(seed: int, *, rows: int = 768, longest: int = 16) -> list[list[int]]:
    """Return sentences of a small language, in which a word determines most of its successors.

    They begin with ``BEGIN``, end with ``END``, and are 6 to ``longest`` tokens long, unpadded.
    """
    generator = torch.Generator().manual_seed(2000 + seed)
    successors = torch.randperm(WORDS, generator=generator)
    sentences = []
    for _ in range(rows):
        length = int(torch.randint(4, longest - 1, (), generator=generator))
        word = int(torch.randint(WORDS, (), generator=generator))
        sentence = [BEGIN, 3 + word]
        for _ in range(length - 1):
            is_random = float(torch.rand((), generator=generator)) < 0.2
            word = (
                int(torch.randint(WORDS, (), generator=generator))
                if is_random
                else int(successors[word])
            )
            sentence.append(3 + word)
        sentences.append([*sentence, END])
    return sentences
