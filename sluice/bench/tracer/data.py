"""Small data sets that can be learned in a few hundred steps."""

from functools import cache

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from sluice.bench.tracer.case import NetName

_NUM_DIGITS = 1797
"""Number of images in scikit-learn's digits."""

_NUM_VALIDATION_DIGITS = 360
NUM_TRAINING_DIGITS = _NUM_DIGITS - _NUM_VALIDATION_DIGITS

PAD, EOS, BOS = 0, 1, 2
"""Ids of the special tokens of ``sentences``."""

_FIRST_WORD = 3
"""Id of the first word of ``sentences``."""

_NUM_WORDS = 24
"""Number of words of ``sentences``."""

VOCAB_SIZE = _FIRST_WORD + _NUM_WORDS
"""Number of special tokens and words of ``sentences``."""


@cache
def _digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.tensor(bunch.data, dtype=torch.float32)
    return images / 16, torch.tensor(bunch.target)


def digits(net: NetName, seed: int) -> tuple[TensorDataset, TensorDataset]:
    """Return scikit-learn's digits for training and for validation, split at random by the seed.

    Targets are integers from 0 to 9. Inputs are in [0, 1], in the shape that the network expects:

    - mlp: (rows, 64)
    - cnn: (rows, 1, 8, 8)
    - gru and transformer: (rows, 8, 8), eight time steps with eight values each
    """
    inputs, targets = _digits()
    shape = {"mlp": (64,), "cnn": (1, 8, 8), "gru": (8, 8), "transformer": (8, 8)}[net]
    order = torch.randperm(_NUM_DIGITS, generator=torch.Generator().manual_seed(seed))
    inputs, targets = inputs[order].reshape(-1, *shape), targets[order]
    held_out, training = slice(_NUM_VALIDATION_DIGITS), slice(_NUM_VALIDATION_DIGITS, None)
    return TensorDataset(inputs[training], targets[training]), TensorDataset(
        inputs[held_out], targets[held_out]
    )


def table(seed: int, *, rows: int = 1536, columns: int = 12) -> tuple[TensorDataset, TensorDataset]:
    """Return tables for training (three quarters of the rows) and validation (one quarter).

    Inputs (rows, columns) are standard normal. Targets (rows,) are a smooth function plus noise.
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


def sentences(seed: int, *, rows: int = 768, max_tokens: int = 16) -> list[list[int]]:
    """Return sentences in which the previous word determines the next with a probability of 0.8.

    A sentence has 6 to ``max_tokens`` tokens: ``BOS``, words and ``EOS``, without padding.
    """
    generator = torch.Generator().manual_seed(2000 + seed)
    successors = torch.randperm(_NUM_WORDS, generator=generator)
    texts = []
    for _ in range(rows):
        num_words = int(torch.randint(4, max_tokens - 1, (), generator=generator))
        word = int(torch.randint(_NUM_WORDS, (), generator=generator))
        sentence = [BOS, _FIRST_WORD + word]
        for _ in range(num_words - 1):
            is_random = float(torch.rand((), generator=generator)) < 0.2
            word = (
                int(torch.randint(_NUM_WORDS, (), generator=generator))
                if is_random
                else int(successors[word])
            )
            sentence.append(_FIRST_WORD + word)
        texts.append([*sentence, EOS])
    return texts
