"""What can be served: a client sends windows of feature rows, and the network gets just those.

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
"""Integers of the small table stay below, so that every integer dtype holds them. A prime: columns
and rows do not repeat at the same distance."""

_ELSEWHERE = "; do the rest in compute_features, or in the network's forward()."


def require_windows(workload: Workload, who: str) -> torch.dtype:
    """Compare the inputs of the workload's own examples, when it writes them, with plain windows.

    Both are made of a small table of numbers with the declared columns: quarters, or integers
    where the workload's inputs are integers, as token ids and pixels are.

    Returns:
        The dtype of the inputs, to which a client's windows must be cast.

    Args:
        workload: Makes the examples.
        who: Begins the message.

    Raises:
        ContractError: They differ, or ``examples`` cannot read the small table.
    """
    if type(workload).examples is Workload.examples:
        return torch.float32
    length, num_columns = workload.settings.seq_len, len(workload.feature_columns)
    values = np.arange((length + 1) * num_columns).reshape(length + 1, -1) / 4
    made, dtype = _made(workload, who, values)
    if made.dtype.kind in "iu":
        values = (4 * values) % _MAX_TABLE_INTEGER
        made, dtype = _made(workload, who, values)
    plain = np.stack([values[start : start + length] for start in (0, 1)]).astype(np.float32)
    if made.shape != plain.shape:
        line = _same_in_forward(made, plain)
        raise _no_windows(who, f"{made.shape} where windows are {plain.shape}", line)
    if not np.array_equal(made, plain):
        raise _no_windows(who, "other values in them")
    return dtype


def _made(
    workload: Workload, who: str, values: NDArray[np.float64]
) -> tuple[NDArray[Any], torch.dtype]:
    """Return the inputs that ``examples`` makes of a table with these feature values."""
    columns = list(workload.feature_columns)
    every = dict.fromkeys((*columns, workload.target_column, *workload.feature_schema.names))
    frame = pd.DataFrame(values, columns=columns).reindex(columns=list(every), fill_value=0.0)
    rows = RowRange(start=len(values) - 2, stop=len(values))
    try:
        x = workload.examples(frame, rows).x
        return x.numpy(), x.dtype
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
        raise _no_windows(who, f"{type(error).__name__} on a small table of numbers") from error


def _same_in_forward(made: NDArray[Any], plain_NLD: NDArray[np.float32]) -> str:
    """Return the line that makes of windows, in a network, what ``examples`` made; "" for none."""
    if np.array_equal(made, plain_NLD[:, -1]):
        return "x = x[:, -1]"
    if np.array_equal(made, plain_NLD.transpose(0, 2, 1)):
        return "x = x.transpose(1, 2)"
    if np.array_equal(made.ravel(), plain_NLD.ravel()) and len(made) == len(plain_NLD):
        return f"x = x.reshape(len(x), {', '.join(map(str, made.shape[1:]))})"
    return ""


def _no_windows(who: str, got: str, line: str = "") -> ContractError:
    """Say what arrived; with the line that belongs into the network, where it is known."""
    do = f"; begin the network's forward(self, x) with: {line}" if line else _ELSEWHERE
    return ContractError(
        f"{who}: inputs must be windows (rows, seq_len, features) of the feature columns to be "
        f"served, 'examples' gives {got}.",
        cause="The workload replaces 'examples', and what it does to inputs is not done to what a "
        "client sends.",
        fix=f"Leave x as super().examples() makes it{do}",
    )
