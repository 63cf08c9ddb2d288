"""Ids given to a loss over classes or to a look-up table: do they all have a place in it?"""

from collections.abc import Mapping
from typing import Any

from sluice.trace.evidence.inputs import IdFact
from sluice.trace.measuring import PLAIN
from sluice.trace.tracer import Tracer

CLASSES = ("cross_entropy", "nll_loss")
"""Losses whose targets may be numbers of classes."""


def ids_outside(kind: str, given: Mapping[str, Any], tracer: Tracer) -> IdFact | None:
    """Return a fact of ids without a place; None when all have one, or there are no ids.

    Args:
        kind: Name of the function.
        given: Its arguments by name, defaults included.
        tracer: Knows the step, the network and the loader at work.
    """
    ids: Any
    if kind == "embedding":
        ids, num = given["input"], given["weight"].shape[0]
    elif kind in CLASSES:
        ids, values = given["target"], given["input"]
        num = values.shape[1 if values.dim() > 1 else 0]
    else:
        return None
    if type(ids) not in PLAIN or ids.is_floating_point() or not ids.numel():
        return None
    flat = ids.detach().reshape(-1)
    if kind in CLASSES:
        flat = flat[flat != given["ignore_index"]]
    outside = (flat < 0) | (flat >= num)
    if not bool(outside.any()):
        return None
    lane = tracer.local.lane
    return IdFact(
        step=tracer.steps,
        network=lane.called,
        loader=lane.loader,
        kind=kind,
        num_allowed=num,
        smallest=int(flat.min()),
        largest=int(flat.max()),
        num_outside=int(outside.sum()),
        num_ids=flat.numel(),
    )
