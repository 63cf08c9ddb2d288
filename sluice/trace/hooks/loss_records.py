"""Summarizes the arguments of a loss function."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sluice.trace.hooks.index_bounds import CLASS_LOSSES
from sluice.trace.inspection.autograd_graph import SHAPE_NODES
from sluice.trace.inspection.token_statistics import best_token_alignment
from sluice.trace.records.losses import LossRecord
from sluice.trace.thread_state import ThreadState

_MAX_SHAPE_NODES = 8
"""Maximum number of reshaping nodes between the input of a loss and the node that computed it."""
_MAX_ONE_HOT_CLASSES = 64
"""Maximum number of classes of one-hot targets. With more classes, the rows per class are not
counted."""


def loss_record(
    kind: str,
    arguments: Mapping[str, Any],
    result: Tensor | None,
    *,
    thread: ThreadState,
    step: int,
    is_learning: bool,
) -> LossRecord:
    """Return a record of one call of a loss function.

    Args:
        kind: Name of the function.
        arguments: Arguments of the function by name, with defaults; input and target are tensors.
        result: The loss; None if the call raised an error, or the loss is not available.
        thread: Provides the last network, its inputs and its loader.
        step: Number of the last step.
        is_learning: Whether the loss requires a gradient; without a result, whether gradients are
            enabled.
    """
    loss_input, target = arguments["input"], arguments["target"]
    is_integer = not target.is_floating_point()
    smallest, largest = (float(v) for v in torch.aminmax(loss_input.detach().float()))
    min_row_sum = max_row_sum = float("nan")
    if loss_input.dim() > 1 and loss_input.shape[1] > 1:
        outputs = loss_input.detach().float()
        row_sums = (outputs.exp() if kind == "nll_loss" else outputs).sum(1)
        min_row_sum, max_row_sum = float(row_sums.min()), float(row_sums.max())
    is_supervised = torch.ones_like(target, dtype=torch.bool)
    if kind in CLASS_LOSSES and is_integer:
        is_supervised = target != arguments["ignore_index"]
    num_supervised = int(is_supervised.sum())
    smallest_target = largest_target = float("nan")
    if num_supervised:
        supervised_targets = target.detach()[is_supervised].double()
        smallest_target, largest_target = (float(v) for v in torch.aminmax(supervised_targets))
    return LossRecord(
        step=step,
        kind=kind,
        network=thread.call.network,
        loader=thread.last_loader,
        is_learning=is_learning,
        reduction=str(arguments["reduction"]),
        producer_node=_producer_name(loss_input),
        input_shape=tuple(loss_input.shape),
        target_shape=tuple(target.shape),
        smallest=smallest,
        largest=largest,
        min_row_sum=min_row_sum,
        max_row_sum=max_row_sum,
        target_is_integer=is_integer,
        target_smallest=smallest_target,
        target_largest=largest_target,
        num_targets=target.numel(),
        num_supervised=num_supervised,
        num_rows_without_class=_count_rows_without_class(target),
        column_counts=_count_rows_per_class(target) if kind.startswith("binary") else (),
        value=float("nan") if result is None else float(result.detach().float().mean()),
        tokens=best_token_alignment(thread.call.inputs, target, is_supervised)
        if kind in CLASS_LOSSES and is_integer
        else None,
    )


def _count_rows_without_class(target: Tensor) -> int:
    """Return the number of one-hot target rows without a class; 0 if targets are not one-hot."""
    return int((target.detach().sum(1) == 0).sum()) if _is_one_hot(target) else 0


def _count_rows_per_class(target: Tensor) -> tuple[int, ...]:
    """Return the number of rows of each class of one-hot targets with 3 to 64 classes; else ()."""
    if not _is_one_hot(target) or not 2 < target.shape[1] <= _MAX_ONE_HOT_CLASSES:
        return ()
    return tuple(int(count) for count in target.detach().sum(0).tolist())


def _is_one_hot(target: Tensor) -> bool:
    """Return whether each row contains at most a single 1 and otherwise zeros."""
    if target.dim() != 2 or not target.is_floating_point():
        return False
    values = target.detach()
    return bool(((values == 0) | (values == 1)).all()) and bool((values.sum(1) <= 1).all())


def _producer_name(loss_input: Tensor) -> str:
    """Return the name of the autograd node that computed a loss input, ignoring reshapes."""
    node = loss_input.grad_fn
    for _ in range(_MAX_SHAPE_NODES):
        if node is None:
            return ""
        name: str = node.name()
        if name not in SHAPE_NODES or not node.next_functions:
            return name
        node = node.next_functions[0][0]
    return "" if node is None else str(node.name())
