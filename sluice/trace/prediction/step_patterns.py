"""Learns which step pattern follows which, so that the next pattern can be predicted.

Usually a pattern follows itself. If two optimizers alternate, their two patterns follow each other.
"""

from collections.abc import Iterable, Sequence

from sluice.trace.objects.object_tracker import ObjectTracker, OptimizerEntry
from sluice.trace.recording.ended_step import EndedStep
from sluice.trace.recording.event_interner import EventInterner
from sluice.trace.records.events import TraceEventKind
from sluice.trace.thread_state import StepPattern

_ORDINARY_KINDS: frozenset[TraceEventKind] = frozenset(
    {"batch", "forward", "backward", "zero", "clip", "step", "schedule"}
)
"""Kinds of events in an ordinary step; steps with other events are always recorded fully."""

_UNUSUAL_FLAGS = frozenset({"scaled", "closure", "by scaler", "in backward", "edited"})
"""Event flags of steps that are always recorded fully."""

_MIN_REPEATS = 256
"""Number of times that a pattern B must follow a pattern A before B is predicted after A."""

_MIN_REPEATS_IF_PREDICTED = 8
"""Number of times that a pattern B must follow a pattern A if B is already predicted after another
pattern. Example: the usual pattern is predicted after itself, and also follows the pattern of the
first step of each epoch."""

_MAX_PATTERNS = 64
"""Maximum number of patterns. When it is reached, patterns without a predicted successor are
dropped. If every pattern has a successor, all are dropped."""

_END_CODE = -2
"""Sentinel after the last event code. It differs from every event code (0 or more) and from -1, the
value for an unknown code."""


class StepPatterns:
    """Patterns of the steps of all threads, with the pattern that is predicted after each."""

    def __init__(self, interner: EventInterner, objects: ObjectTracker) -> None:
        self._interner, self._objects = interner, objects
        self._patterns: dict[tuple[int, ...], StepPattern] = {}
        """Patterns by their codes and thread index."""
        self._last_patterns: dict[int, StepPattern] = {}
        """Pattern of the last step of each thread."""

    def get(self, codes: Sequence[int], thread: int) -> StepPattern | None:
        """Return the pattern of a step with these event codes; None if it is unknown."""
        return self._patterns.get((*codes, thread))

    def add(self, steps: Iterable[EndedStep]) -> None:
        """Count which pattern follows which in the steps that ended, in their order."""
        for step in steps:
            pattern = self._get_or_add(step)
            previous = self._last_patterns.get(step.thread)
            self._last_patterns[step.thread] = pattern
            if previous is not None:
                self._count(previous, pattern, 1)
            is_repeated = not step.ended_ns
            if is_repeated and pattern.successor is not None:
                # ``step`` represents several steps. All these steps but the last were followed by
                # the predicted pattern.
                num_steps = len(step.losses) // 2  # step numbers and losses alternate
                self._count(pattern, pattern.successor, num_steps - 1)

    def keeps_gradients(self, pattern: StepPattern) -> bool:
        """Return whether a step of the pattern uses gradients that were not cleared before it."""
        # The last code before the sentinel is the code of the optimizer step.
        _, _, _, flags, _ = self._interner.event(pattern.codes[-2])
        return "carried" in flags

    def _get_or_add(self, step: EndedStep) -> StepPattern:
        codes = step.events[::2]
        key = *codes, step.thread
        pattern = self._patterns.get(key)
        if pattern is None:
            if len(self._patterns) >= _MAX_PATTERNS:
                self._patterns = {
                    k: p for k, p in self._patterns.items() if p.successor is not None
                }
                if len(self._patterns) >= _MAX_PATTERNS:
                    self._patterns = {}
                for remaining_pattern in self._patterns.values():  # forget dropped patterns
                    remaining_pattern.successor_counts = {
                        p: n
                        for p, n in remaining_pattern.successor_counts.items()
                        if p is remaining_pattern.successor
                    }
            # The layout of ``EndedStep.events``, with 0 instead of each time.
            events_without_times = [code_or_time for code in codes for code_or_time in (code, 0)]
            pattern = self._patterns[key] = StepPattern([*codes, _END_CODE], events_without_times)
        return pattern

    def _count(self, previous: StepPattern, pattern: StepPattern, num_times: int) -> None:
        """Count that ``pattern`` followed ``previous``, and update the prediction."""
        counts = previous.successor_counts
        old_count = counts.get(pattern, 0)
        counts[pattern] = count = old_count + num_times
        is_predicted_elsewhere = pattern.optimizer_entry is not None  # set at its first prediction
        is_due_early = (
            is_predicted_elsewhere
            and previous.successor is None
            and count >= _MIN_REPEATS_IF_PREDICTED
        )
        # Unless it is due early, the prediction is updated at multiples of _MIN_REPEATS.
        if not is_due_early and count // _MIN_REPEATS == old_count // _MIN_REPEATS:
            return
        has_highest_count = previous.successor is None or count > counts.get(previous.successor, 0)
        if previous.successor is not pattern and has_highest_count:
            pattern.optimizer_entry = pattern.optimizer_entry or self._optimizer_entry(
                pattern.codes[:-1]
            )
            previous.successor = pattern if pattern.optimizer_entry is not None else None
        if count >= 2 * _MIN_REPEATS:  # old counts decay
            previous.successor_counts = {p: n // 2 for p, n in counts.items()}

    def _optimizer_entry(self, codes: Sequence[int]) -> OptimizerEntry | None:
        """Return the entry of the optimizer that ends a step; None if the step is unpredictable.

        A step with unusual events cannot be predicted, nor a step of an optimizer that has step
        hooks or was deleted.
        """
        events = [self._interner.event(code) for code in codes]
        optimizer_ids = [object_id for kind, object_id, *_ in events if kind == "step"]
        if len(optimizer_ids) != 1 or events[-1][0] != "step":
            return None
        entries = self._objects.optimizers.entries
        entry = next((e for e in entries if e.index == optimizer_ids[0]), None)
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
