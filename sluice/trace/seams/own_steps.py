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
_IDLE = 16
"""Backward passes without a step, which few programs add up."""
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
        self._before: list[tuple[Tensor, Tensor | int]] = []
        self._watched: list[Tensor] = []
        self._passes = 0
        """Without a step."""
        self._has_stepped = self._has_moved = self._carries = False

    def before_backward(self, lane: Lane) -> None:
        """See a step of a network that is no module, and whether gradients are left from a step."""
        bare = self._tracer.bare
        if lane.called in bare.indices:
            self.look(lane)
            self._passes = 0 if self._has_stepped else self._passes + 1
            # Others may have taken the place of those that are watched.
            if self._passes >= _IDLE and not self._passes & (self._passes - 1):
                bare.look_again()
        if self._has_stepped:
            self._has_stepped = False
            self._carries = any(_has_gradient(p) for p in self._watched)

    def learned(self, lane: Lane) -> None:
        """Remember some weights after a backward pass."""
        learning = self._learning(lane)
        if not learning or (self._before and not self._are_others()):
            return
        learns = [p for p in learning if p.grad is not None]
        self._watched = sorted(learns, key=Tensor.numel)[:_WATCHED]
        self._before = [(p, _kept(p)) for p in self._watched]
        if self._optimizer is None:
            self._optimizer = ByHand([])
        known = {id(p) for p in self._optimizer.param_groups[0]["params"]}
        self._optimizer.param_groups[0]["params"] += [p for p in learns if id(p) not in known]
        self._tracer.inventory.is_stale |= len(known) < len(learns)

    def _learning(self, lane: Lane) -> list[Tensor]:
        """Return the weights of the network that was called last; of none, those behind the loss.

        Where these were not looked at, those that are known; where the program makes others for
        each pass, the first ones, which never change.
        """
        entries, bare = self._tracer.inventory.networks.entries, self._tracer.bare
        if lane.called not in bare.indices:
            entry = next((e for e in entries if e.index == lane.called), None)
            network = None if entry is None else entry.ref()
            return [] if network is None else [*network.parameters()]
        known = [] if self._optimizer is None else self._optimizer.param_groups[0]["params"]
        if not bare.leaves:
            return known
        return [] if self._are_others() and not self._has_moved else [*bare.leaves]

    def _are_others(self) -> bool:
        """Tell whether none of the weights behind the loss is known: of a network that is new."""
        known = [] if self._optimizer is None else self._optimizer.param_groups[0]["params"]
        leaves = self._tracer.bare.leaves
        return bool(known and leaves) and not {*map(id, known)} & {*map(id, leaves)}

    def look(self, lane: Lane) -> None:
        """End the step that was made since, if any."""
        before, optimizer = self._before, self._optimizer
        if optimizer is None or not before:
            return
        if not all(_is_there(p, old) for p, old in before):
            self._before = []  # moved, which cannot be told from a step
            return
        if all(_is_same(p, old) for p, old in before):
            return
        self._before, self._has_stepped, self._has_moved = [], True, True
        entry: OptimizerEntry = self._tracer.inventory.optimizers.find(optimizer)
        self._close(lane, entry)

    def _close(self, lane: Lane, entry: OptimizerEntry) -> None:
        """Close the word of the step: what followed the backward pass belongs to the next one."""
        tracer, book = self._tracer, self._tracer.recorder.book
        kinds = [book.mark(code)[0] for code in lane.codes]
        end = 2 * max((i for i, kind in enumerate(kinds, 1) if kind in _BEFORE_STEP), default=0)
        rest, lane.marks = lane.marks[end:], lane.marks[:end]
        flags = ("fresh", *("carried",) * self._carries)
        self._carries = False
        lane.marks += tracer.code("step", entry.index, flags=flags), tracer.clock()
        tracer.survey.look(tracer.steps)
        tracer.end_step(lane, entry)
        lane.marks += rest


def _kept(parameter: Tensor) -> Tensor | int:
    """Return the numbers of a small parameter; of a large one how often it was changed in place."""
    is_small = parameter.numel() <= _MOST_NUMBERS
    return parameter.detach().clone() if is_small else parameter._version


def _is_there(parameter: Tensor, old: Tensor | int) -> bool:
    if not isinstance(old, Tensor):
        return True
    return parameter.dtype == old.dtype and parameter.device == old.device


def _is_same(parameter: Tensor, old: Tensor | int) -> bool:
    if not isinstance(old, Tensor):
        return parameter._version == old
    return torch.equal(parameter, old)


def _has_gradient(parameter: Tensor) -> bool:
    grad = parameter.grad
    is_plain = grad is not None and grad.layout == torch.strided
    return is_plain and grad is not None and bool(grad.any())


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
