"""Predicts the next step of each thread, and compares each event with the prediction.

A step pattern is predicted once it has followed the previous pattern often enough. The first
mismatch ends the prediction: the step is recorded fully, including the events already matched. Of
``full_sample_every`` consecutive steps of a thread, at least one is recorded fully. So the trace
has the order of events and the losses of every step. Gradient states, learning rates, norms and
times are known only for fully recorded steps.
"""

from collections.abc import Sequence
from itertools import chain
from typing import get_args

from sluice.trace.prediction.step_patterns import StepPatterns
from sluice.trace.program_events import (
    BufferedStepsReleased,
    NonFiniteNorm,
    OptimizerCreated,
    PredictionMayBegin,
    StructureChanged,
    TraceBegan,
    UnexpectedEvent,
)
from sluice.trace.thread_state import Prediction, StepPattern, ThreadState
from sluice.trace.tracer_context import TracerContext

Interruption = UnexpectedEvent | StructureChanged | OptimizerCreated | NonFiniteNorm
_INTERRUPTIONS: tuple[type[Interruption], ...] = get_args(Interruption)
"""Events that end a prediction."""


class StepPredictor:
    """Predicts the next step pattern of each thread."""

    def __init__(self, tracer: TracerContext) -> None:
        self._tracer = tracer
        self._reset()
        tracer.bus.subscribe(TraceBegan, lambda _: self._reset())
        tracer.bus.subscribe(BufferedStepsReleased, self._learn)
        tracer.bus.subscribe(PredictionMayBegin, self._start)
        for event_type in _INTERRUPTIONS:
            tracer.bus.subscribe(event_type, lambda event: self.stop(event.thread))

    def _reset(self) -> None:
        tracer = self._tracer
        self._patterns = StepPatterns(tracer.events.interner, tracer.objects)
        self._max_predicted_steps = 0
        """Maximum number of predicted steps between two fully recorded steps. 0 if no step may be
        predicted, because steps are slow or every step must be recorded fully."""

    def _learn(self, event: BufferedStepsReleased) -> None:
        """Learn from ended steps if steps may be predicted, and update ``_max_predicted_steps``."""
        sampling, settings = self._tracer.sampling, self._tracer.settings
        is_fast = sampling.budget.step_ns < settings.fast_step_s * 1e9
        may_predict = is_fast and not sampling.every_step_needed_by
        self._max_predicted_steps = settings.full_sample_every - 1 if may_predict else 0
        if self._max_predicted_steps:
            self._patterns.add(event.steps)

    def _start(self, event: PredictionMayBegin) -> None:
        """Predict the pattern after the step that just ended, if there is a known successor."""
        if not self._max_predicted_steps:
            return
        thread = event.thread
        pattern = self._patterns.get(event.codes, thread.index)
        successor = None if pattern is None else pattern.successor
        if successor is None:
            return
        num_steps = self._max_predicted_steps
        if successor is not pattern:
            # If two optimizers alternate, an even number of predicted steps makes the fully
            # recorded steps alternate, too. With an odd number, all would belong to one optimizer.
            num_steps -= num_steps % 2
        num_steps = min(num_steps, event.due_step - self._tracer.steps.last_step - 1)
        if num_steps > 0:
            thread.prediction.predicted_steps_left = num_steps
            thread.skips_details = True
            _predict(thread.prediction, successor)

    def stop(self, thread: ThreadState) -> None:
        """End the prediction: record the running step fully, including the matched events."""
        prediction = thread.prediction
        if prediction.position < 0:
            return
        pattern = prediction.pattern
        assert pattern is not None  # because the running step is predicted
        matched_codes, now_ns = prediction.codes[: prediction.position], self._tracer.clock()
        self._close(thread, pattern, matched_codes)
        thread.step.events = [
            code_or_time for code in matched_codes for code_or_time in (code, now_ns)
        ]
        zero_grad_code = pattern.optimizer_entry.zero_grad_code
        # Find out whether ``zero_grad`` or a backward pass happened last.
        gradient_codes = {zero_grad_code, *self._tracer.events.backward_codes}
        last_code = next((c for c in reversed(matched_codes) if c in gradient_codes), None)
        thread.backward.is_followed_by_zeroing = last_code == zero_grad_code

    def end_step(self, thread: ThreadState) -> None:
        """Store a step that matched its prediction, and predict the next step."""
        steps, prediction = self._tracer.steps, thread.prediction
        pattern = prediction.pattern
        assert pattern is not None  # because the step was predicted
        steps.last_step = step_number = next(steps.step_numbers)
        if not pattern.steps_and_losses:
            prediction.repeated_patterns.append(pattern)
        pattern.steps_and_losses += step_number, thread.step.losses
        thread.step.losses = []
        prediction.predicted_steps_left -= 1
        successor = pattern.successor
        if successor is pattern and prediction.predicted_steps_left:
            prediction.position = 0
        elif successor is not None and prediction.predicted_steps_left:
            _predict(prediction, successor)
        else:
            self._close(thread, pattern, ())

    def _close(
        self, thread: ThreadState, current: StepPattern, matched_codes: Sequence[int]
    ) -> None:
        """Report the steps that matched their predictions, and end the prediction.

        Args:
            thread: Thread of the steps.
            current: Pattern of the running step, or of the step that ended last.
            matched_codes: Event codes of the running step so far; empty if no step runs.
        """
        tracer, prediction = self._tracer, thread.prediction
        prediction.position, thread.skips_details = -1, False
        thread.step.began_ns = tracer.clock()
        patterns, prediction.repeated_patterns = prediction.repeated_patterns, []
        patterns.sort(key=lambda pattern: pattern.steps_and_losses[-2])  # by their last step
        for pattern in patterns:
            steps_and_losses, pattern.steps_and_losses = pattern.steps_and_losses, []
            last_step, losses = steps_and_losses[-2:]
            num_steps = len(steps_and_losses) // 2
            thread.num_steps += num_steps
            pattern.optimizer_entry.num_steps += num_steps
            thread.last_loss = losses[-1] if losses else None
            tracer.steps.add_repeated(
                last_step, thread.index, pattern.events_without_times, steps_and_losses,
                (), None, 0, 0, 0, 0,  # no clips, loss scale and times
            )  # fmt: skip
        self._update_gradient_trackers(patterns, current, matched_codes)

    def _update_gradient_trackers(
        self, patterns: Sequence[StepPattern], current: StepPattern, matched_codes: Sequence[int]
    ) -> None:
        """Update the gradient trackers, which were not updated in the predicted steps.

        These are the trackers of the optimizers that made the predicted steps, and of the optimizer
        that is predicted to end the running step.

        Args:
            patterns: Patterns of the predicted steps that ended, sorted by their last step.
            current: As in ``_close``.
            matched_codes: As in ``_close``.
        """
        code_lists = [current.codes, *(pattern.codes for pattern in patterns)]
        backward_codes = self._tracer.events.backward_codes
        last_index_by_entry = {
            pattern.optimizer_entry: pattern_index for pattern_index, pattern in enumerate(patterns)
        }
        # The optimizer of the running step is included, even if it made no repeated step.
        for entry in dict.fromkeys((current.optimizer_entry, *last_index_by_entry)):
            tracker, pattern_index = entry.gradient_tracker, last_index_by_entry.get(entry, -1)
            zero_grad_code = entry.zero_grad_code
            codes_since_step = [  # since the last step of this optimizer
                *chain.from_iterable(pattern.codes for pattern in patterns[pattern_index + 1 :]),
                *matched_codes,
            ]
            has_zero_grad = any(zero_grad_code in codes for codes in code_lists)
            # If there is no zero_grad event, but gradients are not kept from step to step, the
            # program clears gradients in a way that causes no event.
            clears_silently = not has_zero_grad and not self._patterns.keeps_gradients(
                current if pattern_index < 0 else patterns[pattern_index]
            )
            if zero_grad_code in codes_since_step or (codes_since_step and clears_silently):
                tracker.is_cleared = True
            elif pattern_index >= 0:
                # The gradients of the optimizer's last step are still in place.
                has_backward = not backward_codes.isdisjoint(codes_since_step)
                tracker.record_gradients(may_have_changed=has_backward)


def _predict(prediction: Prediction, pattern: StepPattern) -> None:
    """Set the predicted pattern of the next step."""
    prediction.pattern, prediction.codes = pattern, pattern.codes
    prediction.optimizer_step_position = len(pattern.codes) - 2
    prediction.optimizer_entry, prediction.position = pattern.optimizer_entry, 0
