"""Facts that the graph behind a loss tells: masks of attention, rows of tables."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from sluice.trace.evidence.flow import MaskFact
from sluice.trace.evidence.inputs import IdFact
from sluice.trace.graph import class_lookups, hidden_positions, lookups


def masks_behind(nodes: list[Any], pads: Tensor, *, step: int, network: int) -> Iterator[MaskFact]:
    """Yield what each attention hid of the rows that are padded.

    Args:
        nodes: Of the graph, by ``nodes_behind``.
        pads: Which positions of the input are padding, (rows, positions).
        step: Steps made before.
        network: Its index.
    """
    padded = pads.any(1)
    pads = pads[padded]
    for hidden in hidden_positions(nodes, len(padded), pads.shape[1]):
        masked = hidden.to(pads.device)[padded]
        if bool(masked.any()):
            yield MaskFact(
                step=step,
                network=network,
                module="",
                num_rows=pads.shape[0],
                num_masked=int(masked.sum()),
                num_positions=pads.numel(),
                num_padding=int(pads.sum()),
                num_padding_masked=int((masked & pads).sum()),
            )


def ids_behind(nodes: list[Any], *, step: int, network: int, loader: int) -> Iterator[IdFact]:
    """Yield lookups by numbers below 0, which count from the end of a table, or of the classes."""
    found = [("index", x.ids, x.table.shape[0]) for x in lookups(nodes)]
    found += [("class index", ids, num) for ids, num in class_lookups(nodes)]
    for kind, ids, rows in found:
        ids = ids.detach()
        below = ids < 0
        if not bool(below.any()):
            continue
        wrapped, plain = (ids[below] + rows).unique(), ids[~below].unique()
        yield IdFact(
            step=step,
            network=network,
            loader=loader,
            kind=kind,
            num_allowed=rows,
            smallest=int(ids.min()),
            largest=int(ids.max()),
            num_outside=int(below.sum()),
            num_ids=ids.numel(),
            num_shared=int(torch.isin(wrapped, plain).sum()),
        )
