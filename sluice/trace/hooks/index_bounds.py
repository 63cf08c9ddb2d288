"""Checks class ids against the number of classes, and embedding indices against the table size."""

from collections.abc import Mapping
from typing import Any

import torch

from sluice.trace.inspection.plain_tensors import is_plain_dense
from sluice.trace.records.inputs import OutOfRangeIndexRecord
from sluice.trace.tracer_context import TracerContext

CLASS_LOSSES = ("cross_entropy", "nll_loss")
"""Losses whose targets may be class ids."""
_INDEX_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
"""Dtypes of indices that are checked; torch cannot compare unsigned integers of other sizes."""


def find_out_of_range(
    kind: str, arguments: Mapping[str, Any], tracer: TracerContext
) -> OutOfRangeIndexRecord | None:
    """Return a record of out-of-range indices; None if no index is out of range.

    Args:
        kind: Name of the function.
        arguments: Arguments of the function by name, with defaults.
        tracer: Provides the current step, network and loader.
    """
    ids: Any
    if kind == "embedding":
        ids, indexed_tensor, indexed_dim = arguments["input"], arguments["weight"], 0
    elif kind in CLASS_LOSSES:
        ids, indexed_tensor = arguments["target"], arguments["input"]
        indexed_dim = 1 if indexed_tensor.dim() > 1 else 0
    else:
        return None
    if not is_plain_dense(ids) or ids.dtype not in _INDEX_DTYPES or not ids.numel():
        return None
    # torch raises an error for a scalar.
    if indexed_tensor.is_nested or not indexed_tensor.dim():
        return None
    num_allowed = indexed_tensor.shape[indexed_dim]
    flat_ids = ids.detach().reshape(-1)
    if kind in CLASS_LOSSES:
        flat_ids = flat_ids[flat_ids != arguments["ignore_index"]]
    is_outside = (flat_ids < 0) | (flat_ids >= num_allowed)
    if not bool(is_outside.any()):
        return None
    thread = tracer.local.thread
    return OutOfRangeIndexRecord(
        step=tracer.steps.last_step,
        network=thread.call.network,
        loader=thread.last_loader,
        kind=kind,
        num_allowed=num_allowed,
        smallest=int(flat_ids.min()),
        largest=int(flat_ids.max()),
        num_outside=int(is_outside.sum()),
        num_ids=flat_ids.numel(),
    )
