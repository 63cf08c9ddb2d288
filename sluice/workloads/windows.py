"""Checks that a workload can be served with the default codec, which needs windows of feature rows.

Shape legend: N = windows, L = rows of a window, D = features.
"""

from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from sluice.base.errors import ContractError
from sluice.data.folds import RowRange
from sluice.workloads.workload import Workload

_MAX_TABLE_INTEGER = 97
"""Exclusive upper bound of the integers in the small table. Every integer dtype can represent them.
The bound is a prime number, so that the values of columns and rows repeat with different
periods."""

_ALTERNATIVES = (
    "; do other preprocessing in compute_features, or in the network's forward(). Inputs that are "
    "not windows need a codec: return one from codec() of the workload (guide "
    "'Serve texts, images and raw rows' of the documentation)."
)


def require_windows(workload: Workload, source: str) -> torch.dtype:
    """Require that the inputs of an overridden ``examples`` equal plain windows of feature rows.

    Clients send plain windows, so other preprocessing in ``examples`` would not be applied to their
    inputs. The result of ``examples`` for a small table is compared with the plain windows of this
    table. Its values are multiples of 1/4, or integers if the workload's inputs are integers, such
    as token ids and pixels.

    Args:
        workload: Workload that builds the examples.
        source: Name for the start of the message.

    Returns:
        The dtype of the inputs, to which a client's windows must be converted.

    Raises:
        ContractError: The inputs differ, or ``examples`` cannot process the small table.
    """
    if type(workload).examples is Workload.examples:
        return torch.float32
    length, num_columns = workload.settings.seq_len, len(workload.feature_columns)
    values = np.arange((length + 1) * num_columns).reshape(length + 1, -1) / 4
    inputs, dtype = _compute_inputs(workload, source, values)
    if inputs.dtype.kind in "iu":
        values = (4 * values) % _MAX_TABLE_INTEGER
        inputs, dtype = _compute_inputs(workload, source, values)
    plain_NLD = np.stack([values[start : start + length] for start in (0, 1)]).astype(np.float32)
    if inputs.shape != plain_NLD.shape:
        forward_line = _find_forward_line(inputs, plain_NLD)
        raise _not_windows_error(
            source, f"returns the shape {inputs.shape} instead of {plain_NLD.shape}", forward_line
        )
    if not np.array_equal(inputs, plain_NLD):
        raise _not_windows_error(source, "returns windows with other values")
    return dtype


def _compute_inputs(
    workload: Workload, source: str, values: NDArray[np.float64]
) -> tuple[NDArray[Any], torch.dtype]:
    """Return the inputs that ``examples`` computes from a table with these feature values."""
    columns = list(workload.feature_columns)
    all_columns = dict.fromkeys((*columns, workload.target_column, *workload.feature_schema.names))
    features = pd.DataFrame(values, columns=columns)
    frame = features.reindex(columns=list(all_columns), fill_value=0.0)
    rows = RowRange(start=len(values) - 2, stop=len(values))
    try:
        x = workload.examples(frame, rows).tensor
        return x.numpy(), x.dtype
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
        raise _not_windows_error(
            source, f"raises {type(error).__name__} for a small table of numbers"
        ) from error


def _find_forward_line(inputs: NDArray[Any], plain_NLD: NDArray[np.float32]) -> str:
    """Return the line of forward() that converts windows to these inputs; "" if unknown."""
    if np.array_equal(inputs, plain_NLD[:, -1]):
        return "x = x[:, -1]"
    if np.array_equal(inputs, plain_NLD.transpose(0, 2, 1)):
        return "x = x.transpose(1, 2)"
    if np.array_equal(inputs.ravel(), plain_NLD.ravel()) and len(inputs) == len(plain_NLD):
        return f"x = x.reshape(len(x), {', '.join(map(str, inputs.shape[1:]))})"
    return ""


def _not_windows_error(source: str, problem: str, forward_line: str = "") -> ContractError:
    """Return the error, with the equivalent line of the network's forward() if it is known."""
    advice = (
        f"; begin the network's forward(self, x) with: {forward_line}"
        if forward_line
        else _ALTERNATIVES
    )
    return ContractError(
        f"{source}: to be served, inputs must be windows (rows, seq_len, features) of the feature "
        f"columns, but 'examples' {problem}.",
        cause="The workload overrides 'examples', whose preprocessing is not applied to the "
        "inputs that a client sends.",
        fix=f"Leave x as returned by super().examples(){advice}",
    )
