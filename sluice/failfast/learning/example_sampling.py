"""Samples of real examples for the checks."""

from torch import Tensor

from sluice.data.rows.protocol import ModelInput, spread_rows
from sluice.workloads.examples import Examples


def sample_evenly(examples: Examples, num_examples: int) -> Examples:
    """Return at most ``num_examples`` evenly spaced examples, in order, and load them to memory."""
    if len(examples) <= num_examples and examples.is_in_memory:
        return examples
    return examples.take(spread_rows(len(examples), num_examples))


def format_shape(value: ModelInput) -> str:
    """Return the shape as text, such as (32, 22, 9); for a dict, the shapes by name."""
    if isinstance(value, Tensor):
        return str(tuple(value.shape))
    return str({name: tuple(tensor.shape) for name, tensor in value.items()})
