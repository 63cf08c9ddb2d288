"""Data that simple baseline rules are fitted on and predict from.

Shape legend: N = examples, L = sequence length [rows], D = features, K = inputs of an example,
flattened.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sluice.training.prediction import read_in_chunks
from sluice.workloads.examples import Examples
from sluice.workloads.workload import Workload


class RuleNotApplicable(Exception):
    """Raised by a rule that does not apply to the data of the workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleData:
    """Targets, row positions and a limited number of inputs of examples."""

    y: Tensor
    rows: NDArray[np.int64]
    input_NK: NDArray[np.float64] | None
    """Inputs of each example; None for token ids and dicts, which are not quantities, and for rows
    whose inputs are not needed."""

    @classmethod
    def of(cls, examples: Examples, *, max_inputs: int) -> "RuleData":
        """Return the targets, positions and at most ``max_inputs`` inputs of each example."""
        return cls(
            y=examples.targets,
            rows=examples.rows,
            input_NK=_read_inputs(examples, max_inputs),
        )


BaselineRule = Callable[[Workload, RuleData, RuleData, RuleData], Tensor]
"""Function of (workload, train rows, known rows for lagged targets, rows to predict) that returns
outputs. It raises ``RuleNotApplicable`` for data to which the rule does not apply."""


def _read_inputs(examples: Examples, max_inputs: int) -> NDArray[np.float64] | None:
    """Return at most ``max_inputs`` inputs of each example (N, K); None for dicts and token ids."""
    chunks = []
    for chunk in read_in_chunks(examples.x):
        values = _flatten_inputs(chunk, max_inputs) if isinstance(chunk, Tensor) else None
        if values is None:
            return None
        chunks.append(values)
    return np.concatenate(chunks)


def _flatten_inputs(x: Tensor, max_inputs: int) -> NDArray[np.float64] | None:
    """Return at most ``max_inputs`` inputs of each example (N, K); None for token ids.

    For a window, the newest inputs are used; for other inputs, an evenly spaced subset.
    """
    if not x.is_floating_point() and x.dtype != torch.uint8:
        return None  # token ids are not quantities
    if x.ndim == 3:  # (N, L, D)
        num_steps = max(1, math.ceil(max_inputs / max(1, x.shape[2])))
        x = x[:, -num_steps:].flip(1)
        flat = x.reshape(len(x), -1)[:, :max_inputs]
    else:
        flat = x.reshape(len(x), -1)
        flat = flat[:, torch.from_numpy(evenly_spaced_positions(flat.shape[1], max_inputs))]
    return flat.double().numpy()


def evenly_spaced_positions(count: int, max_positions: int) -> NDArray[np.int64]:
    """Return at most ``max_positions`` positions, evenly spaced from 0 to ``count`` - 1."""
    if count <= max_positions:
        return np.arange(count)
    return np.linspace(0, count - 1, max_positions).astype(np.int64)
