"""When a run is looked at as closely as at its first steps: what goes wrong may begin late."""

import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from torch import Tensor

from sluice.trace.deferred import Deferred
from sluice.trace.recorder import EndedStep

if TYPE_CHECKING:
    from sluice.trace.tracer import Tracer

_FIRST = 64
"""Steps after which a second training may begin."""

_LATEST, _BEFORE = 32, 256
"""The middle one of so many losses is above all of so many before them, or each is 0: other data,
another loss, or something broke."""

_EVERY = 16
"""They are compared so often that more than half of the latest are new when those before are not
yet."""


class Phases:
    """Begins a phase with an optimizer that is new, as of a new head, and where losses jump up.

    Each phase comes at twice the steps of the last one at the earliest: a search that makes many
    optimizers, or losses that jump all the time, are looked at ever more rarely.
    """

    def __init__(self, tracer: "Tracer") -> None:
        self._tracer = tracer
        self._next = _FIRST
        self._losses: deque[float] = deque(maxlen=_LATEST + _BEFORE)
        self._asked, self._is_far = Deferred(), False
        """Losses that wait, and whether some are on a device."""
        self._since = 0
        """So many were heard of since they were compared."""
        self.jumps = False
        """The losses have left their level since the last step that was looked at closely."""

    def may_begin(self) -> bool:
        """Tell whether it is long enough since the last one began."""
        return self._tracer.steps >= self._next

    def begin(self) -> None:
        """Look again at everything that is looked at when a training begins."""
        tracer = self._tracer
        self._next = 2 * tracer.steps
        self._losses.clear()
        self.jumps = False
        tracer.cadence.begin_again()
        tracer.survey.begin_again(tracer.steps)
        for network in tracer.inventory.networks.entries:
            network.next_flow = tracer.steps
        if tracer.losses is not None:
            tracer.losses.begin_phase()
        tracer.has_norms = True

    def hear(self, rows: Iterable[EndedStep]) -> None:
        """Hear of steps that ended; what lies on a device waits until that is read anyway."""
        told: list[tuple[int, list[Any]]] = []
        for row in rows:
            if row.ended:
                told.append((row.step, row.losses))
            else:
                told += zip(row.losses[::2], row.losses[1::2], strict=True)
        # Of two optimizers that take turns, what repeats is told of one after the other.
        told.sort(key=itemgetter(0))
        losses = [*chain.from_iterable(found for _, found in told)]
        self._asked.ask(losses, self._compare)
        self._is_far |= any(isinstance(loss, Tensor) and not loss.is_cpu for loss in losses)
        if not self._is_far:
            self.read()

    def read(self) -> None:
        """Read the losses that wait."""
        self._asked.read()
        self._is_far = False

    def _compare(self, losses: Sequence[float]) -> None:
        for loss in losses:
            self._losses.append(loss)
            self._since += 1
            if self._since >= _EVERY and len(self._losses) == _LATEST + _BEFORE:
                self._since, told = 0, [*self._losses]
                latest, before = told[_BEFORE:], told[:_BEFORE]
                if statistics.median(latest) > max(before) or not any(latest):
                    self.jumps = True
