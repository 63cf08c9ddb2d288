"""Steps that repeat what came before: most of them are told by their order and losses alone.

Where steps are short, to look at each of them closely would cost some percent. An order that often
followed another (itself, or with two optimizers that take turns the other's) is expected after it:
each event of the next step is only compared with what stood in its place. The first that differs
ends that, and the step is looked at closely from there on, with what led to it. So the order of
every step is known, and every loss; what gradients a step finds, its rates, norms and times are
known of one step in some.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from sluice.trace.evidence.order import MarkKind
from sluice.trace.inventory import OptimizerEntry
from sluice.trace.lane import Lane, Order
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
"""So often an order follows another before it is expected to."""

_SOON = 8
"""And so often if it is expected after another one already, as at the start of an epoch."""

_MOST_ORDERS = 64

_END = -2
"""Stands after the last event; no code, and not the -1 of a code that is not known."""


class Routine:
    """Which order each thread makes after which."""

    def __init__(self, tracer: "Tracer") -> None:
        self._tracer = tracer
        self._orders: dict[tuple[int, ...], Order] = {}
        """By their codes, and the thread that makes them."""
        self._last: dict[int, Order] = {}
        self._repeats = 0
        """Steps that repeat one until a step is looked at closely; 0 where steps are long."""

    def settle(self, rows: Iterable[EndedStep]) -> None:
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
            order = self._order(row)
            before = self._last.get(row.thread)
            self._last[row.thread] = order
            if before is not None:
                self._count(before, order, 1)
            if not row.ended and order.next is not None:
                # Each of them but the last was followed by what was expected.
                self._count(order, order.next, len(row.losses) // 2 - 1)

    def _order(self, row: EndedStep) -> Order:
        codes = row.marks[::2]
        key = *codes, row.thread
        order = self._orders.get(key)
        if order is None:
            if len(self._orders) >= _MOST_ORDERS:
                self._orders = {k: o for k, o in self._orders.items() if o.next is not None}
                if len(self._orders) >= _MOST_ORDERS:
                    self._orders = {}
                for known in self._orders.values():
                    known.counts = {o: n for o, n in known.counts.items() if o is known.next}
            told = [number for code in codes for number in (code, 0)]
            order = self._orders[key] = Order([*codes, _END], told)
        return order

    def _count(self, before: Order, order: Order, num: int) -> None:
        counts, times = before.counts, before.counts.get(order, 0)
        counts[order] = times + num
        is_soon = before.next is None and order.stepper is not None and times + num >= _SOON
        if not is_soon and (times + num) // _TIMES == times // _TIMES:
            return
        is_frequent = before.next is None or counts[order] > counts.get(before.next, 0)
        if before.next is not order and is_frequent:
            order.stepper = order.stepper or self._stepper(order.word[:-1])
            before.next = order if order.stepper is not None else None
        if counts[order] >= 2 * _TIMES:  # what was long ago counts less and less
            before.counts = {o: n // 2 for o, n in counts.items()}

    def _stepper(self, codes: Sequence[int]) -> OptimizerEntry | None:
        """Return the entry of the optimizer that ends such steps; None if they are not ordinary."""
        marks = [self._tracer.recorder.book.mark(code) for code in codes]
        steps = [subject for kind, subject, *_ in marks if kind == "step"]
        if len(steps) != 1 or marks[-1][0] != "step":
            return None
        entries = self._tracer.inventory.optimizers.entries
        entry = next((e for e in entries if e.index == steps[0]), None)
        owner = None if entry is None else entry.ref()
        if owner is None or owner._optimizer_step_pre_hooks or owner._optimizer_step_post_hooks:
            return None
        are_ordinary = all(
            kind in _KINDS and not _STRANGE & {*flags} and (kind != "forward" or "grad" in flags)
            for kind, _, _, flags, _ in marks
        )
        return entry if are_ordinary else None

    def begin(self, lane: Lane, codes: Sequence[int], until: int) -> None:
        """Expect what follows the order of the step that just ended."""
        if not self._repeats:
            return
        order = self._orders.get((*codes, lane.number))
        following = None if order is None else order.next
        if following is None:
            return
        left = self._repeats
        if following is not order:
            # Odd gaps, so that of two optimizers that take turns it is not always the same one.
            left -= left % 2
        left = min(left, until - self._tracer.steps - 1)
        if left > 0:
            lane.repeats_left = left
            self._expect(lane, following)

    def _expect(self, lane: Lane, order: Order) -> None:
        lane.order, lane.word, lane.last = order, order.word, len(order.word) - 2
        lane.stepper, lane.at = order.stepper, 0

    def leave(self, lane: Lane) -> None:
        """Look closely at the step that runs from here on, with the events that led here."""
        order = lane.order
        assert order is not None  # as a step repeats it
        led, now = lane.word[: lane.at], self._tracer.clock()
        self._close(lane, order, led)
        lane.marks = [number for code in led for number in (code, now)]
        zero, backward = order.stepper.zero_code, self._tracer.backward_marks
        last = next((code for code in reversed(led) if code == zero or code in backward), None)
        lane.zero_after_backward = last == zero

    def end_step(self, lane: Lane) -> None:
        """Close a step that repeated the order which was expected."""
        tracer, order = self._tracer, lane.order
        assert order is not None  # as the step repeated it
        tracer.steps = step = next(tracer.numbers)
        if not order.repeated:
            lane.repeating.append(order)
        order.repeated += step, lane.losses
        lane.losses = []
        lane.repeats_left -= 1
        following = order.next
        if following is order and lane.repeats_left:
            lane.at = 0
        elif following is not None and lane.repeats_left:
            self._expect(lane, following)
        else:
            self._close(lane, order, ())

    def _close(self, lane: Lane, now: Order, led: Sequence[int]) -> None:
        """Tell of the steps that repeated orders, and expect none.

        Args:
            lane: Whose steps they are.
            now: The order of the step that runs, or ended last.
            led: What happened in the step that runs.
        """
        tracer = self._tracer
        lane.at, lane.began = -1, tracer.clock()
        orders, lane.repeating = lane.repeating, []
        orders.sort(key=_last_step)
        for order in orders:
            told, order.repeated = order.repeated, []
            last, losses = told[-2:]
            lane.steps += len(told) // 2
            order.stepper.steps += len(told) // 2
            lane.last_loss = losses[-1] if losses else None
            tracer.add_ended(last, lane.number, order.told, told, (), None, 0, 0, 0, 0)
        self._catch_up(orders, now, led)

    def _catch_up(self, orders: Sequence[Order], now: Order, led: Sequence[int]) -> None:
        """See what the optimizers that stepped, or are about to, have for gradients now.

        Args:
            orders: Repeated since a step was looked at closely, by their last steps.
            now: The one of the step that runs, or ended last.
            led: What happened in the step that runs.
        """
        words = [now.word, *(order.word for order in orders)]
        backward = self._tracer.backward_marks
        lasts = {order.stepper: i for i, order in enumerate(orders)}
        for stepper in {now.stepper: -1, **lasts}:
            watch, zero, i = stepper.watch, stepper.zero_code, lasts.get(stepper, -1)
            since = [*chain.from_iterable(order.word for order in orders[i + 1 :]), *led]
            is_marked = any(zero in word for word in words)
            is_kept = is_marked or self._is_carried(now if i < 0 else orders[i])
            if zero in since or (since and not is_kept):
                watch.is_cleared = True  # where that leaves no mark, it may have been done
            elif i >= 0:
                # What its last step left is still there.
                watch.remember(may_have_moved=not backward.isdisjoint(since))

    def _is_carried(self, order: Order) -> bool:
        """Tell whether nothing ever clears the gradients of an order that repeats."""
        return "carried" in self._tracer.recorder.book.mark(order.word[-2])[3]


def _last_step(order: Order) -> int:
    step: int = order.repeated[-2]
    return step
