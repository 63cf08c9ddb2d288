"""Rows of the input beside the targets they are compared with, each row once."""

from typing import Any

import torch
from torch import Tensor

from sluice.trace.evidence.inputs import PairFact
from sluice.trace.fingerprints import LOSS
from sluice.trace.lane import Lane
from sluice.trace.measuring import PLAIN
from sluice.trace.pairs import (
    Scaling,
    features_of,
    packed,
    prior_of,
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
        self._phase = -1
        self.begin_phase()

    def begin_phase(self) -> None:
        """Begin anew: what was kept before belongs to another training."""
        self._phase += 1
        self._num: dict[int, int] = {}
        self._known: set[int] = set()
        self._scaling: dict[int, Scaling] = {}
        self._column: dict[int, int] = {}
        """Of targets of several numbers."""

    def add(self, kind: str, values: Any, target: Any) -> None:
        """Take the targets that a loss function compares with what the last network was given.

        Args:
            kind: Name of the loss function.
            values: Its input; of several calls before it, it may be made by an earlier one.
            target: What it compares them with.
        """
        tracer, lane = self._tracer, self._tracer.local.lane
        num = self._num.get(lane.called, 0)
        if num >= _MOST_ROWS or not lane.given or not self._is_of_last_call(lane, values):
            return
        # What else it was given may tell the target, so all of it counts.
        given: list[Any] = [ref() for ref in lane.given]
        if type(target) not in PLAIN or not all(map(_has_rows, given)):
            return
        # A whole batch may be given, or the target be what is to be made again.
        given = [batch for batch in given if not _is_same(batch, target)]
        if not given or len({batch.shape[0] for batch in given}) > 1:
            return
        began = tracer.clock()
        with torch.no_grad():
            column = target_column(target, given[0].shape[0], self._column.get(lane.called))
            if column is None:
                return
            self._column[lane.called] = column[2]
            words = tracer.settings.row_words
            seen = tracer.row_prints
            prints = [seen.of(batch, words=words, place=LOSS)[:_MOST_ROWS] for batch in given]
            rows = prints[0] if len(prints) == 1 else (*map(hash, zip(*prints, strict=True)),)
            new = [i for i, row in enumerate(rows) if row not in self._known][: _MOST_ROWS - num]
            if not new:
                return
            self._known.update(rows[i] for i in new)
            features = torch.cat([features_of(batch[new]) for batch in given], 1)
            scaling = self._scaling.get(lane.called)
            if scaling is None:
                scaling = self._scaling[lane.called] = scaling_of(features)
            if scaling.mean.shape[0] != features.shape[1]:
                return
            fact = PairFact(
                step=tracer.steps,
                phase=self._phase,
                network=lane.called,
                kind=kind,
                is_class=column[1],
                is_whole=not any(batch.is_floating_point() for batch in given),
                rows=tuple(rows[i] for i in new),
                targets=tuple(column[0][new].tolist()),
                prior=prior_of(kind, target),
                num_features=features.shape[1],
                features=packed(features, scaling),
            )
        self._num[lane.called] = num + len(new)
        tracer.recorder.write("pair", fact)
        if tracer.has_statistics:
            lane.spent += tracer.clock() - began

    def _is_of_last_call(self, lane: Lane, values: Any) -> bool:
        """Tell whether the last call of a network made some values, or no other one can have."""
        book, calls = self._tracer.recorder.book, 0
        for code in reversed(lane.codes):
            kind = book.mark(code)[0]
            if kind == "backward":
                break
            calls += kind == "forward"
        made = None if lane.made is None else lane.made()
        if lane.in_forward or calls < 2 or made is None or made is values:
            return True
        return type(values) is Tensor and bool(reached(values, [made.grad_fn]))


def _has_rows(batch: Tensor | None) -> bool:
    if batch is None or batch.is_complex() or batch.layout != torch.strided:
        return False
    return bool(batch.dim() and batch.numel())


def _is_same(batch: Tensor, target: Tensor) -> bool:
    return batch.numel() == target.numel() and batch.data_ptr() == target.data_ptr()
