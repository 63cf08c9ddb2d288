"""Fast path for repeated steps: records only the step pattern and the losses.

Recording every short step fully would cost some percent of its time. A step pattern is predicted
once it has followed the previous pattern often enough. The previous pattern is usually the same
one, or that of the other of two alternating optimizers. Each event of a predicted step is only
compared with the prediction, and the loss is stored. The first mismatch falls back to full
recording, including the events already matched. One step in ``full_sample_every`` is always
recorded fully. So the order of events and the losses are known for every step; gradient state,
learning rates, norms and times only for the fully recorded steps.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from sluice.trace.object_tracker import OptimizerEntry
from sluice.trace.recorder import EndedStep
from sluice.trace.records.events import TraceEventKind
from sluice.trace.thread_state import StepPattern, ThreadState

if TYPE_CHECKING:
    from sluice.trace.tracer import Tracer

_ORDINARY_KINDS: frozenset[TraceEventKind] = frozenset(
    {"batch", "forward", "backward", "zero", "clip", "step", "schedule"}
)
"""Kinds of events in an ordinary step; steps with other events are always recorded fully."""

_UNUSUAL_FLAGS = frozenset({"scaled", "closure", "by scaler", "in backward", "edited"})
"""Event flags of steps that are always recorded fully."""

_MIN_REPEATS = 256
"""Number of times that a pattern must follow another one before it is predicted."""

_MIN_REPEATS_KNOWN = 8
"""Number of times required if the pattern is already predicted after a different one, for example
after the first step of an epoch."""

_MAX_PATTERNS = 64

_END_CODE = -2
"""Sentinel after the last event code; differs from codes and from -1, the unknown code."""


class StepPatternPredictor:
    """Predicts the next step pattern of each thread."""

    def __init__(self, tracer: "Tracer") -> None:
        self._tracer = tracer
        self._patterns: dict[tuple[int, ...], StepPattern] = {}
        """Patterns by their codes and thread index."""
        self._last: dict[int, StepPattern] = {}
        """Pattern of the last step of each thread."""
        self._repeats = 0
        """Number of predicted steps between two fully recorded ones; 0 if steps are long."""

    def observe_steps(self, rows: Iterable[EndedStep]) -> None:
        """Count which pattern follows which in the steps that ended, in their order."""
        tracer = self._tracer
        settings = tracer.settings
        is_fast = tracer.sampling_budget.step_ns < settings.fast_step_s * 1e9
        # The non-finite guard and the comparison of ranks need every step; without a torch
        # optimizer no event ends a step.
        is_fast_path_allowed = (
            tracer.nonfinite_guard is None
            and not tracer.after_step
            and tracer.manual_updates is None
        )
        self._repeats = settings.full_sample_every - 1 if is_fast and is_fast_path_allowed else 0
        if not self._repeats:
            return
        for row in rows:
            pattern = self._pattern(row)
            before = self._last.get(row.thread)
            self._last[row.thread] = pattern
            if before is not None:
                self._count(before, pattern, 1)
            if not row.ended_ns and pattern.successor is not None:
                # All repeated steps but the last were followed by the predicted pattern.
                self._count(pattern, pattern.successor, len(row.losses) // 2 - 1)

    def _pattern(self, row: EndedStep) -> StepPattern:
        codes = row.events[::2]
        key = *codes, row.thread
        pattern = self._patterns.get(key)
        if pattern is None:
            if len(self._patterns) >= _MAX_PATTERNS:
                self._patterns = {
                    k: p for k, p in self._patterns.items() if p.successor is not None
                }
                if len(self._patterns) >= _MAX_PATTERNS:
                    self._patterns = {}
                for known in self._patterns.values():
                    known.successor_counts = {
                        p: n for p, n in known.successor_counts.items() if p is known.successor
                    }
            events = [number for code in codes for number in (code, 0)]
            pattern = self._patterns[key] = StepPattern([*codes, _END_CODE], events)
        return pattern

    def _count(self, before: StepPattern, pattern: StepPattern, num: int) -> None:
        counts, times = before.successor_counts, before.successor_counts.get(pattern, 0)
        counts[pattern] = times + num
        is_predicted_elsewhere = (
            before.successor is None
            and pattern.optimizer_entry is not None
            and times + num >= _MIN_REPEATS_KNOWN
        )
        if not is_predicted_elsewhere and (times + num) // _MIN_REPEATS == times // _MIN_REPEATS:
            return
        is_frequent = before.successor is None or counts[pattern] > counts.get(before.successor, 0)
        if before.successor is not pattern and is_frequent:
            pattern.optimizer_entry = pattern.optimizer_entry or self._optimizer_entry(
                pattern.codes[:-1]
            )
            before.successor = pattern if pattern.optimizer_entry is not None else None
        if counts[pattern] >= 2 * _MIN_REPEATS:  # old counts decay
            before.successor_counts = {p: n // 2 for p, n in counts.items()}

    def _optimizer_entry(self, codes: Sequence[int]) -> OptimizerEntry | None:
        """Return the entry of the optimizer that ends a step; None if the step is not ordinary."""
        events = [self._tracer.recorder.interner.event(code) for code in codes]
        steps = [object_id for kind, object_id, *_ in events if kind == "step"]
        if len(steps) != 1 or events[-1][0] != "step":
            return None
        entries = self._tracer.objects.optimizers.entries
        entry = next((e for e in entries if e.index == steps[0]), None)
        optimizer = None if entry is None else entry.ref()
        if (
            optimizer is None
            or optimizer._optimizer_step_pre_hooks
            or optimizer._optimizer_step_post_hooks
        ):
            return None
        are_ordinary = all(
            kind in _ORDINARY_KINDS
            and not _UNUSUAL_FLAGS & {*flags}
            and (kind != "forward" or "grad" in flags)
            for kind, _, _, flags, _ in events
        )
        return entry if are_ordinary else None

    def start(self, thread: ThreadState, codes: Sequence[int], until: int) -> None:
        """Predict the pattern after the step that just ended, if there is a known successor.

        Args:
            thread: Thread of the step.
            codes: Event codes of the step.
            until: Number of the next step that must be recorded fully.
        """
        if not self._repeats:
            return
        pattern = self._patterns.get((*codes, thread.index))
        following = None if pattern is None else pattern.successor
        if following is None:
            return
        left = self._repeats
        if following is not pattern:
            # Even, so that of two alternating optimizers both get fully recorded steps.
            left -= left % 2
        left = min(left, until - self._tracer.steps - 1)
        if left > 0:
            thread.repeats_left = left
            self._expect(thread, following)

    def _expect(self, thread: ThreadState, pattern: StepPattern) -> None:
        thread.expected, thread.expected_codes = pattern, pattern.codes
        thread.step_position = len(pattern.codes) - 2
        thread.optimizer_entry, thread.position = pattern.optimizer_entry, 0

    def stop(self, thread: ThreadState) -> None:
        """Record the running step fully from here on, including the events already matched."""
        pattern = thread.expected
        assert pattern is not None  # because the running step is predicted
        matched, now = thread.expected_codes[: thread.position], self._tracer.clock()
        self._close(thread, pattern, matched)
        thread.events = [number for code in matched for number in (code, now)]
        zero, backward = pattern.optimizer_entry.zero_code, self._tracer.all_backward_codes
        last = next((code for code in reversed(matched) if code == zero or code in backward), None)
        thread.is_zeroed_after_backward = last == zero

    def end_step(self, thread: ThreadState) -> None:
        """Store a step that matched its prediction, and predict the next one."""
        tracer, pattern = self._tracer, thread.expected
        assert pattern is not None  # because the step was predicted
        tracer.steps = step = next(tracer.step_numbers)
        if not pattern.repeated_steps:
            thread.repeated_patterns.append(pattern)
        pattern.repeated_steps += step, thread.losses
        thread.losses = []
        thread.repeats_left -= 1
        following = pattern.successor
        if following is pattern and thread.repeats_left:
            thread.position = 0
        elif following is not None and thread.repeats_left:
            self._expect(thread, following)
        else:
            self._close(thread, pattern, ())

    def _close(self, thread: ThreadState, current: StepPattern, matched: Sequence[int]) -> None:
        """Report the predicted steps to the tracer, and end the prediction.

        Args:
            thread: Thread of the steps.
            current: Pattern of the running step, or of the step that ended last.
            matched: Event codes of the running step so far.
        """
        tracer = self._tracer
        thread.position, thread.step_began_ns = -1, tracer.clock()
        patterns, thread.repeated_patterns = thread.repeated_patterns, []
        patterns.sort(key=_last_step)
        for pattern in patterns:
            repeated, pattern.repeated_steps = pattern.repeated_steps, []
            last, losses = repeated[-2:]
            thread.steps += len(repeated) // 2
            pattern.optimizer_entry.steps += len(repeated) // 2
            thread.last_loss = losses[-1] if losses else None
            tracer.add_repeated_steps(
                last, thread.index, pattern.events_without_times, repeated, (), None, 0, 0, 0, 0
            )
        self._update_gradient_trackers(patterns, current, matched)

    def _update_gradient_trackers(
        self, patterns: Sequence[StepPattern], current: StepPattern, matched: Sequence[int]
    ) -> None:
        """Record the gradient state of the optimizers that stepped or are about to step.

        Args:
            patterns: Patterns repeated since the last fully recorded step, sorted by last step.
            current: Pattern of the running step, or of the step that ended last.
            matched: Event codes of the running step so far.
        """
        code_lists = [current.codes, *(pattern.codes for pattern in patterns)]
        backward = self._tracer.all_backward_codes
        last_index = {pattern.optimizer_entry: i for i, pattern in enumerate(patterns)}
        for entry in {current.optimizer_entry: -1, **last_index}:
            tracker, zero, i = entry.gradient_tracker, entry.zero_code, last_index.get(entry, -1)
            since = [*chain.from_iterable(pattern.codes for pattern in patterns[i + 1 :]), *matched]
            has_zero_event = any(zero in codes for codes in code_lists)
            is_kept = has_zero_event or self._is_carried(current if i < 0 else patterns[i])
            if zero in since or (since and not is_kept):
                tracker.is_cleared = True  # clearing without an event may have happened
            elif i >= 0:
                # The gradients of its last step are still in place.
                tracker.record_gradients(may_have_changed=not backward.isdisjoint(since))

    def _is_carried(self, pattern: StepPattern) -> bool:
        """Return whether nothing ever clears the gradients of a repeated pattern."""
        return "carried" in self._tracer.recorder.interner.event(pattern.codes[-2])[3]


def _last_step(pattern: StepPattern) -> int:
    step: int = pattern.repeated_steps[-2]
    return step
