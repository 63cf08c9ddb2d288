"""Records read from the autograd graph of a loss: attention masks, and indices of lookups."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from sluice.trace.inspection.autograd_graph import (
    find_class_lookups,
    find_lookups,
    masked_key_positions,
)
from sluice.trace.records.forward_passes import PaddingMaskRecord
from sluice.trace.records.inputs import OutOfRangeIndexRecord

_MAX_COLUMNS = 64
"""The ids of a lookup are compared with each integer input as a whole. They are also compared with
each column of an input that has at most this number of columns (length of its last dimension)."""
_MIN_DISTINCT_IDS = 8
"""An input matches the ids of a lookup only if it has at least this number of distinct valid ids.
Fewer ids may match by chance."""


def graph_mask_records(
    nodes: list[Any], is_padding: Tensor, *, step: int, network: int
) -> Iterator[PaddingMaskRecord]:
    """Yield a record of each attention layer that masked positions in rows with padding.

    Args:
        nodes: Nodes of the graph, from ``graph_nodes``.
        is_padding: Mask of the padding positions of the input, (rows, positions).
        step: Number of optimizer steps so far.
        network: Index of the network.
    """
    has_padding = is_padding.any(1)
    is_padding = is_padding[has_padding]
    for masked_keys in masked_key_positions(nodes, len(has_padding), is_padding.shape[1]):
        is_masked = masked_keys.to(is_padding.device)[has_padding]
        if bool(is_masked.any()):
            yield PaddingMaskRecord(
                step=step,
                network=network,
                module="",
                num_rows=is_padding.shape[0],
                num_masked=int(is_masked.sum()),
                num_positions=is_padding.numel(),
                num_padding=int(is_padding.sum()),
                num_padding_masked=int((is_masked & is_padding).sum()),
            )


def negative_index_records(
    nodes: list[Any], *, step: int, network: int, loader: int
) -> Iterator[OutOfRangeIndexRecord]:
    """Yield a record of each lookup with negative indices, which count from the table's end."""
    index_lookups = [("index", lookup.ids, lookup.table.shape[0]) for lookup in find_lookups(nodes)]
    index_lookups += [
        ("class index", ids, num_classes) for ids, num_classes in find_class_lookups(nodes)
    ]
    for kind, ids, num_allowed in index_lookups:
        ids = ids.detach()
        is_negative = ids < 0
        if not bool(is_negative.any()):
            continue
        rows_of_negative_ids = (ids[is_negative] + num_allowed).unique()
        rows_of_valid_ids = ids[~is_negative].unique()
        yield OutOfRangeIndexRecord(
            step=step,
            network=network,
            loader=loader,
            kind=kind,
            num_allowed=num_allowed,
            smallest=int(ids.min()),
            largest=int(ids.max()),
            num_outside=int(is_negative.sum()),
            num_ids=ids.numel(),
            num_shared=int(torch.isin(rows_of_negative_ids, rows_of_valid_ids).sum()),
        )


def clamped_index_records(
    nodes: list[Any], inputs: Iterable[Tensor], *, step: int, network: int, loader: int
) -> Iterator[OutOfRangeIndexRecord]:
    """Yield a record of each lookup whose ids the network clamped to the size of the table.

    The ids of such a lookup equal the ids of an input, except that ids beyond the table select the
    last row of the table.

    Args:
        nodes: Nodes of the graph, from ``graph_nodes``.
        inputs: Tensor arguments of the network. Each integer tensor, and each column of such a
            tensor, may contain the ids.
        step: Number of optimizer steps so far.
        network: Index of the network.
        loader: Index of the loader of the last batch; -1 without a loader.
    """
    integer_inputs = [
        t.detach() for t in inputs if t.dtype in (torch.int64, torch.int32) and t.numel()
    ]
    narrow_inputs = [t for t in integer_inputs if t.dim() and t.shape[-1] <= _MAX_COLUMNS]
    input_columns = [column for t in narrow_inputs for column in t.unbind(-1)]
    for lookup in (*find_lookups(nodes, "Embedding"), *find_lookups(nodes)):
        ids, num_allowed = lookup.ids.detach(), lookup.table.shape[0]
        for input_ids in (*integer_inputs, *input_columns):
            if input_ids.shape != ids.shape or int(input_ids.max()) < num_allowed:
                continue
            input_ids = input_ids.to(ids.device)
            is_beyond = input_ids >= num_allowed
            is_valid = (input_ids >= 0) & ~is_beyond
            # A negative input id matches every id, because the network may have clamped it, too.
            matches = torch.where(is_beyond, ids == num_allowed - 1, (ids == input_ids) | ~is_valid)
            if bool(matches.all()) and input_ids[is_valid].unique().numel() >= _MIN_DISTINCT_IDS:
                yield OutOfRangeIndexRecord(
                    step=step,
                    network=network,
                    loader=loader,
                    kind="clamped",
                    num_allowed=num_allowed,
                    smallest=int(input_ids.min()),
                    largest=int(input_ids.max()),
                    num_outside=int(is_beyond.sum()),
                    num_ids=ids.numel(),
                )
                break
