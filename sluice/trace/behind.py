"""Facts that the graph behind a loss tells: masks of attention, rows of tables."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from sluice.trace.evidence.flow import MaskFact
from sluice.trace.evidence.inputs import IdFact
from sluice.trace.graph import class_lookups, hidden_positions, lookups

_MOST_COLUMNS = 64
_LEAST_IDS = 8
"""Different ones with a row of their own: fewer may be equal by chance."""


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


def ids_clamped(
    nodes: list[Any], given: Iterable[Tensor], *, step: int, network: int, loader: int
) -> Iterator[IdFact]:
    """Yield lookups by ids that a network was given, those beyond the table as its last row.

    Args:
        nodes: Of the graph, by ``nodes_behind``.
        given: Tensors that the network was given; of (..., columns) each column may be ids.
        step: Steps made before.
        network: Its index.
        loader: Of the last batch; -1 for none.
    """
    whole = [t.detach() for t in given if t.dtype in (torch.int64, torch.int32) and t.numel()]
    some = [c for t in whole if t.dim() and t.shape[-1] <= _MOST_COLUMNS for c in t.unbind(-1)]
    for lookup in (*lookups(nodes, "Embedding"), *lookups(nodes)):
        ids, rows = lookup.ids.detach(), lookup.table.shape[0]
        for wanted in (*whole, *some):
            if wanted.shape != ids.shape or int(wanted.max()) < rows:
                continue
            wanted = wanted.to(ids.device)
            beyond, inside = wanted >= rows, (wanted >= 0) & (wanted < rows)
            same = torch.where(beyond, ids == rows - 1, (ids == wanted) | ~inside)
            if bool(same.all()) and wanted[inside].unique().numel() >= _LEAST_IDS:
                yield IdFact(
                    step=step,
                    network=network,
                    loader=loader,
                    kind="clamped",
                    num_allowed=rows,
                    smallest=int(wanted.min()),
                    largest=int(wanted.max()),
                    num_outside=int(beyond.sum()),
                    num_ids=ids.numel(),
                )
                break
