"""The first gradients that are not finite: whose they are, before a clip and a step spread them."""

import math
from typing import TYPE_CHECKING

from sluice.trace.evidence.values import GradientFact
from sluice.trace.inventory import OptimizerEntry
from sluice.trace.lane import Lane
from sluice.trace.valuing import gradient_fact, spoiled_fact

if TYPE_CHECKING:  # it makes these
    from sluice.trace.tracer import Tracer

_MOST_GRADIENTS = 3
"""Facts of gradients that were not finite."""

_MOST_WHOLE = 64
"""Passes at the start after which all gradients that are watched are looked at."""

_IDLE = 5
"""Of every round of turns, so many look at nothing: the next loss tells of spoiled weights, too.
Odd, and a round of one optimizer or two is shorter than 10 passes."""


class Looks:
    """Looks at a few gradients after each backward pass, and at all of them where one is bad."""

    def __init__(self, tracer: "Tracer") -> None:
        self._tracer = tracer
        self._passes = self._told = 0

    def after_backward(self, lane: Lane) -> None:
        """See the first gradients that are not finite.

        After the first passes at most one gradient is looked at after each, in turn. Of two
        optimizers each may have every other pass: an odd number of turns lets each look meet both.
        """
        if self._told >= _MOST_GRADIENTS:
            return
        self._passes += 1
        entries = self._tracer.inventory.optimizers.entries
        if self._passes <= _MOST_WHOLE:
            for entry in entries:
                asleep = entry.rests and _is_asleep(entry)
                if not asleep and not entry.look.is_finite(entry):
                    self._tell(entry, lane)
            return
        turn = self._passes % (2 * len(entries) + _IDLE)
        if 0 < turn <= 2 * len(entries):
            entry = entries[(turn - 1) // 2]
            # A clip reads the norm of all its gradients.
            if entry.clipped >= entry.steps or (entry.rests and _is_asleep(entry)):
                return
            if not entry.look.is_finite(entry, turn % 2):
                self._tell(entry, lane)

    def before_clip(self, lane: Lane) -> None:
        """See whose gradients are not finite, as their norm is not."""
        # Those that overflow under a loss scale are no fault.
        book = self._tracer.recorder.book
        if self._told < _MOST_GRADIENTS and not any(
            "scaled" in book.mark(c)[3] for c in lane.codes
        ):
            for entry in self._tracer.inventory.optimizers.entries:
                self._tell(entry, lane)

    def at_bad_loss(self) -> None:
        """See at the first loss that is not finite which weights the last step has spoiled."""
        tracer = self._tracer
        last = tracer.local.lane.last_loss
        loss = math.nan if last is None else float(last)
        if self._told or not math.isfinite(loss):
            return
        self._told = _MOST_GRADIENTS
        for entry in tracer.inventory.optimizers.entries:
            fact = spoiled_fact(entry, tracer.inventory, tracer.steps, loss)
            if fact is not None:
                kind = "gradient" if isinstance(fact, GradientFact) else "spoiled"
                tracer.recorder.write(kind, fact)

    def _tell(self, entry: OptimizerEntry, lane: Lane) -> None:
        tracer = self._tracer
        fact = gradient_fact(entry, tracer.inventory, tracer.steps + 1, lane)
        if fact.parameters:
            self._told += 1
            tracer.recorder.write("gradient", fact)
            tracer.survey.look_first(tracer.steps)  # there may never be a step


def _is_asleep(entry: OptimizerEntry) -> bool:
    """Wake an optimizer with gradients from before the trace when it is used; True until then."""
    entry.rests = not (entry.steps or entry.watch.is_cleared)
    return True
