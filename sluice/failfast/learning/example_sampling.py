"""Samples of real examples for the checks."""

import numpy as np
import torch

from sluice.workloads.workload import Examples


def sample_evenly(examples: Examples, num_examples: int) -> Examples:
    """Return at most ``num_examples`` evenly spaced examples, in order.

    Neighbouring rows of a time series are nearly equal; evenly spaced rows cover the whole period.
    """
    if len(examples) <= num_examples:
        return examples
    chosen = np.linspace(0, len(examples) - 1, num_examples).round().astype(np.int64)
    index = torch.from_numpy(chosen)
    return Examples(x=examples.x[index], y=examples.y[index], rows=examples.rows[chosen])


def format_shape(value: torch.Tensor) -> str:
    """Return the shape as text, such as (32, 22, 9)."""
    return str(tuple(value.shape))
