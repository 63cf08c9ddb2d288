"""Steps that repeat one order: most of them are told by that order and their losses alone.

Where steps are short, to look at each of them closely would cost some percent. An order that
followed itself often is expected again: each event of the next steps is only compared with what
stood in its place. The first that differs ends that, and the step is looked at closely from there
on, with what led to it. So the order of every step is known, and every loss; what gradients a step
finds, its rates, norms and times are known of one step in some.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from sluice.trace.evidence.order import MarkKind
from sluice.trace.lane import Lane
from sluice.trace.recorder import EndedStep

if TYPE_CHECKING:
    from sluice.trace.tracer import Tracer

_KINDS: frozenset[MarkKind] = frozenset(
    {"batch", "forward", "backward", "zero", "clip", "step", "schedule"}
)
"""Of the events of an ordinary step; what makes others looks at each of them closely."""

_STRANGE = frozenset({"scaled", "closure", "by scaler", "in backward", "edited"})
"""Flags of those that are none."""

_TIMES = 256
"""So often an order follows itself before it is expected to."""

_MOST_ORDERS = 64

_END = -2
"""Stands after the last event; no code, and not the -1 of a code that is not known."""


class Routine:
    """Which order each thread repeats."""

    def __init__(self, tracer: "Tracer") -> None:
        self._tracer = tracer
        self._times: dict[tuple[int, tuple[int, ...]], int] = {}
        self._last: dict[int, tuple[int, ...]] = {}
        self._repeats = 0
        """Steps that repeat it until one is looked at closely; 0 where steps are long."""

    def settle(self, rows: Iterable[EndedStep], lanes: Sequence[Lane]) -> None:
        """Hear of steps that ended, in their order."""
        tracer = self._tracer
        settings = tracer.settings
        is_quick = tracer.cadence.step_ns < settings.quick_step_s * 1e9
        # What acts, or compares ranks, needs every step; without an optimizer of torch there is
        # no event that ends one.
        is_free = tracer.acts is None and not tracer.after_step and tracer.own_steps is None
        self._repeats = settings.closely_every - 1 if is_quick and is_free else 0
        if not self._repeats:
            return
        for row in rows:
            if not row.ended:
                continue
            codes, before = tuple(row.marks[::2]), self._last.get(row.thread)
            self._last[row.thread] = codes
            if codes != before:
                continue
            key = row.thread, codes
            times = self._times.get(key, 0) + 1
            if times == 1 and len(self._times) >= _MOST_ORDERS:
                self._times.clear()
            self._times[key] = times % _TIMES  # a phase may come again
            lane = lanes[row.thread]
            # Another thread may repeat its order right now.
            if times == _TIMES and lane.at < 0 and self._may_repeat(codes):
                lane.word, lane.last = [*codes, _END], len(codes) - 1
                lane.told = [number for code in codes for number in (code, 0)]

    def _may_repeat(self, codes: Sequence[int]) -> bool:
        marks = [self._tracer.recorder.book.mark(code) for code in codes]
        steps = [subject for kind, subject, *_ in marks if kind == "step"]
        optimizers = self._tracer.inventory.optimizers.entries
        if len(steps) != 1 or marks[-1][0] != "step":
            return False
        owner = next((e.ref() for e in optimizers if e.index == steps[0]), None)
        if owner is None or owner._optimizer_step_pre_hooks or owner._optimizer_step_post_hooks:
            return False
        return all(
            kind in _KINDS and not _STRANGE & {*flags} and (kind != "forward" or "grad" in flags)
            for kind, _, _, flags, _ in marks
        )

    def begin(self, lane: Lane, codes: Sequence[int], until: int) -> None:
        """Expect the order of the step that just ended again, if it is the one that repeats."""
        left = min(self._repeats, until - self._tracer.steps - 1)
        if left > 0 and [*codes, _END] == lane.word:
            lane.at, lane.repeats_left = 0, left

    def leave(self, lane: Lane) -> None:
        """Look closely at the step that runs from here on, with the events that led here."""
        led, now, watch = lane.word[: lane.at], self._tracer.clock(), lane.stepper.watch
        self._close(lane)
        lane.marks = [number for code in led for number in (code, now)]
        zero, backward = lane.stepper.zero_code, self._tracer.backward_marks
        last = next((code for code in reversed(led) if code == zero or code in backward), None)
        lane.zero_after_backward = last == zero
        if zero in led or (zero not in lane.word and not self._is_carried(lane)):
            watch.is_cleared = True  # where that leaves no mark, it may have been done
        elif last is None:
            watch.remember()  # what the last step left is still there

    def _is_carried(self, lane: Lane) -> bool:
        """Tell whether nothing ever clears the gradients of the order that repeats."""
        return "carried" in self._tracer.recorder.book.mark(lane.word[-2])[3]

    def end_step(self, lane: Lane) -> None:
        """Close a step that repeated the order."""
        tracer = self._tracer
        tracer.steps = step = next(tracer.numbers)
        lane.repeated += step, lane.losses
        lane.losses = []
        lane.at = 0
        lane.repeats_left -= 1
        if not lane.repeats_left:
            self._close(lane)
            lane.stepper.watch.remember()

    def _close(self, lane: Lane) -> None:
        """Tell of the steps that repeated the order, and expect it no more."""
        tracer, entry = self._tracer, lane.stepper
        told, lane.repeated = lane.repeated, []
        lane.at, lane.began = -1, tracer.clock()
        if told:
            lane.steps += len(told) // 2
            entry.steps += len(told) // 2
            last, losses = told[-2:]
            lane.last_loss = losses[-1] if losses else None
            tracer.add_ended(last, lane.number, lane.told, told, (), None, 0, 0, 0, 0)
