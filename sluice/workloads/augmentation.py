"""Random numbers for augmentation: a pure function of the seed of each example.

Shape legend: B = examples of a batch, K = numbers per example.
"""

import numpy as np
import torch
from torch import Tensor


def draw_uniform(seeds: Tensor, num_values: int) -> Tensor:
    """Return uniform random numbers in [0, 1), float32 (B, K).

    Row b depends only on ``seeds[b]``. A larger ``num_values`` appends numbers to a row and does
    not change the first numbers.

    Args:
        seeds: Seeds of the examples, as passed to ``Workload.augment``, int64 (B,).
        num_values: Number of values per example (K).

    Source:
        Steele, Lea and Flood (2014), "Fast Splittable Pseudorandom Number Generators": SplitMix64.

    >>> draw_uniform(torch.tensor([7, 8, 7]), 2)
    tensor([[0.3898, 0.0168],
            [0.6185, 0.6119],
            [0.3898, 0.0168]])
    """
    steps = np.arange(1, num_values + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state = seeds.cpu().numpy().astype(np.uint64)[:, None] + steps  # wraps modulo 2^64
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state ^= state >> np.uint64(shift)
        state *= np.uint64(factor)
    state ^= state >> np.uint64(31)
    # Only the upper 24 bits are used, the precision of a float32. More bits could round up to 1.
    numbers = (state >> np.uint64(40)).astype(np.float32) / np.float32(2**24)
    return torch.from_numpy(numbers).to(seeds.device)
