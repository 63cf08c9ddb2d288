"""Steps of a program that has no optimizer of torch: it changes its weights itself.

Such a step calls nothing that could be watched. Where weights are others before a forward pass
than they were after the backward pass before it, a step was made in between.
"""

from typing import Any

import torch
from torch import Tensor

from sluice.trace.inventory import OptimizerEntry
from sluice.trace.lane import Lane
from sluice.trace.tracer import Tracer

_BEFORE_STEP = ("backward", "clip")
_WATCHED = 2
_MOST_NUMBERS = 2**14
"""Of a parameter that is watched."""


class ByHand:
    """Stands for the optimizer that there is none of: what the program changes, in one group."""

    def __init__(self, parameters: list[Tensor]) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": parameters}]
        self.state: dict[Tensor, Any] = {}


class OwnSteps:
    """Sees the steps that a program without an optimizer makes."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._optimizer: ByHand | None = None
        self._before: list[tuple[Tensor, Tensor]] = []

    def learned(self, lane: Lane) -> None:
        """Remember some weights after a backward pass."""
        networks = self._tracer.inventory.networks.entries
        entry = next((e for e in networks if e.index == lane.called), None)
        network = None if entry is None else entry.ref()
        if network is None or self._before:
            return
        learns = [p for p in network.parameters() if p.grad is not None]
        small = sorted((p for p in learns if p.numel() <= _MOST_NUMBERS), key=Tensor.numel)
        self._before = [(p, p.detach().clone()) for p in small[:_WATCHED]]
        if self._optimizer is None:
            self._optimizer = ByHand([])
        known = {id(p) for p in self._optimizer.param_groups[0]["params"]}
        self._optimizer.param_groups[0]["params"] += [p for p in learns if id(p) not in known]
        self._tracer.inventory.is_stale |= len(known) < len(learns)

    def look(self, lane: Lane) -> None:
        """End the step that was made since, if any."""
        before, optimizer = self._before, self._optimizer
        if optimizer is None or not before:
            return
        if not all(p.dtype == old.dtype and p.device == old.device for p, old in before):
            self._before = []  # moved, which cannot be told from a step
            return
        if all(torch.equal(p, old) for p, old in before):
            return
        self._before = []
        entry: OptimizerEntry = self._tracer.inventory.optimizers.find(optimizer)
        self._close(lane, entry)

    def _close(self, lane: Lane, entry: OptimizerEntry) -> None:
        """Close the word of the step: what followed the backward pass belongs to the next one."""
        tracer, book = self._tracer, self._tracer.recorder.book
        kinds = [book.mark(code)[0] for code in lane.codes]
        end = 2 * max((i for i, kind in enumerate(kinds, 1) if kind in _BEFORE_STEP), default=0)
        rest, lane.marks = lane.marks[end:], lane.marks[:end]
        lane.marks += tracer.code("step", entry.index, flags=("fresh",)), tracer.clock()
        tracer.survey.look(tracer.steps)
        tracer.end_step(lane, entry)
        lane.marks += rest


def watch_own_steps(tracer: Tracer) -> None:
    """See steps by hand until an optimizer is made or steps; the other seams call it.

    One that was there before may belong to something else.
    """

    def begin() -> None:
        tracer.own_steps = OwnSteps(tracer)

    def end() -> None:
        if tracer.own_steps is not None:
            tracer.own_steps.look(tracer.local.lane)

    begin()
    tracer.on_begin.append(begin)
    tracer.before_end.append(end)
