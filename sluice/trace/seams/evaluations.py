"""Losses without gradients, from one learning step to the next: what an evaluation came to."""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from sluice.trace.evidence.losses import EvaluationFact
from sluice.trace.recorder import Thin
from sluice.trace.tracer import Tracer

_MOST_WAITING = 512
"""Losses that are held before they are added up."""


class _Pass:
    def __init__(self, step: int) -> None:
        self.step = step
        self.calls = 0
        self.total: Tensor | float = 0.0
        self.waiting: list[Tensor] = []

    def add(self, loss: Tensor) -> None:
        self.calls += 1
        self.waiting.append(loss)
        if len(self.waiting) >= _MOST_WAITING:
            self.fold()

    def fold(self) -> None:
        if self.waiting:
            self.total = self.total + torch.stack(self.waiting).sum()
            self.waiting = []


class Evaluations:
    """The passes of evaluation of a trace; nothing is read from a device before a flush."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self.open: dict[tuple[int, int, str], _Pass] = {}
        """Losses that came since the last learning step; asked for at every step."""
        self._thin = Thin(tracer.settings.history_rows)

    def add(self, kind: str, loss: Tensor) -> None:
        """Take one mean loss of the network and loader that are at work."""
        steps, lane = self._tracer.steps, self._tracer.local.lane
        key = (lane.called, lane.loader, kind)
        known = self.open.get(key)
        if known is not None and known.step != steps:
            self.write()
            known = None
        if known is None:
            known = self.open[key] = _Pass(steps)
        known.add(loss)

    def write(self) -> None:
        """Close the passes that are open."""
        passes, self.open = self.open, {}
        for (network, loader, kind), told in passes.items():
            told.fold()
            if not self._thin.takes_next():
                continue
            total = told.total if isinstance(told.total, Tensor) else torch.tensor(told.total)
            self._tracer.recorder.deferred.ask(
                [total], functools.partial(self._evaluated, network, loader, kind, told)
            )

    def _evaluated(
        self, network: int, loader: int, kind: str, told: _Pass, values: Sequence[float]
    ) -> None:
        fact = EvaluationFact(
            step=told.step,
            network=network,
            loader=loader,
            kind=kind,
            num_calls=told.calls,
            mean=values[0] / told.calls,
        )
        self._tracer.recorder.write("evaluation", fact)
