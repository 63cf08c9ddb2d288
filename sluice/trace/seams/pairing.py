"""Rows of the input beside the targets they are compared with, each row once."""

from typing import Any

import torch
from torch import Tensor

from sluice.trace.evidence.inputs import PairFact
from sluice.trace.lane import Lane
from sluice.trace.measuring import PLAIN
from sluice.trace.pairs import (
    Scaling,
    features_of,
    fingerprints,
    packed,
    scaling_of,
    target_column,
)
from sluice.trace.targets import reached
from sluice.trace.tracer import Tracer

_MOST_ROWS = 1024
"""Of a network."""


class Pairing:
    """What was kept of each network so far."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._num: dict[int, int] = {}
        self._known: set[int] = set()
        self._scaling: dict[int, Scaling] = {}

    def add(self, kind: str, values: Any, target: Any) -> None:
        """Take the targets that a loss function compares with what the last network was given.

        Args:
            kind: Name of the loss function.
            values: Its input; of several calls before it, it may be made by an earlier one.
            target: What it compares them with.
        """
        tracer, lane = self._tracer, self._tracer.local.lane
        num = self._num.get(lane.called, 0)
        if num >= _MOST_ROWS or len(lane.given) != 1:  # what else it was given may tell the target
            return
        if not _is_of_last_call(lane, values):
            return
        batch: Any = lane.given[0]()
        if batch is None or batch.dim() < 1 or batch.is_complex() or type(target) not in PLAIN:
            return
        if not batch.numel():
            return
        began = tracer.clock()
        with torch.no_grad():
            column = target_column(target, batch.shape[0])
            if column is None:
                return
            rows = fingerprints(batch, words=tracer.settings.row_words, most=_MOST_ROWS)
            new = [i for i, row in enumerate(rows) if row not in self._known][: _MOST_ROWS - num]
            if not new:
                return
            self._known.update(rows[i] for i in new)
            features = features_of(batch[new])
            scaling = self._scaling.get(lane.called)
            if scaling is None:
                scaling = self._scaling[lane.called] = scaling_of(features)
            if scaling.mean.shape[0] != features.shape[1]:
                return
            fact = PairFact(
                step=tracer.steps,
                network=lane.called,
                kind=kind,
                is_class=column[1],
                is_whole=not batch.is_floating_point(),
                rows=tuple(rows[i] for i in new),
                targets=tuple(column[0][new].tolist()),
                num_features=features.shape[1],
                features=packed(features, scaling),
            )
        self._num[lane.called] = num + len(new)
        tracer.recorder.write("pair", fact)
        if tracer.has_statistics:
            lane.spent += tracer.clock() - began


def _is_of_last_call(lane: Lane, values: Any) -> bool:
    """Tell whether the last call of a network made some values, or was the only one it can be."""
    calls = 0
    for kind, *_ in reversed(lane.marks):
        if kind == "backward":
            break
        calls += kind == "forward"
    made = None if lane.made is None else lane.made()
    if lane.in_forward or calls < 2 or made is None or made is values:
        return True
    return type(values) is Tensor and bool(reached(values, [made.grad_fn]))
