"""Finds the first non-finite gradients, before clipping or a step spreads the non-finite values."""

import math

from sluice.trace.objects.object_tracker import OptimizerEntry
from sluice.trace.program_events import (
    BackwardEnded,
    NonFiniteLoss,
    NonFiniteNorm,
    TraceBegan,
)
from sluice.trace.records.parameter_values import NonFiniteGradientRecord
from sluice.trace.sampling.parameter_values import find_corrupted_weights, find_nonfinite_gradients
from sluice.trace.thread_state import ThreadState
from sluice.trace.tracer_context import TracerContext

_MAX_RECORDS = 3
"""Number of records of non-finite gradients in a trace after which gradients are no longer
checked."""

_FULL_CHECK_PASSES = 64
"""Number of first backward passes. After each of them, all chosen gradients of all optimizers are
checked. After each later pass, at most one gradient is checked."""

_IDLE_PASSES = 5
"""Number of backward passes without a check in each round. A round has two passes per optimizer,
each of which checks one gradient, and then these idle passes. A non-finite value that the checks
miss appears in a later loss.

This number is odd, so that the length of a round is odd, too. If the length were even and two
optimizers alternated, each position of the round would always fall on a pass of the same optimizer.
Only one of the two chosen gradients of an optimizer would then be checked after its own passes."""


def watch_gradients(tracer: TracerContext) -> None:
    """Check gradients after backward passes from now on."""
    _GradientChecks(tracer)


class _GradientChecks:
    """Checks a few gradients after each backward pass, and records which are non-finite.

    If a checked gradient is non-finite, the other gradients of its optimizer are checked, too. The
    backward passes of predicted steps are not checked, because the fast path does not publish them.
    """

    def __init__(self, tracer: TracerContext) -> None:
        self._tracer = tracer
        self._reset()
        tracer.bus.subscribe(TraceBegan, lambda _: self._reset())
        tracer.bus.subscribe(BackwardEnded, self._after_backward)
        tracer.bus.subscribe(NonFiniteNorm, self._before_clip)
        tracer.bus.subscribe(NonFiniteLoss, self._on_nonfinite_loss)

    def _reset(self) -> None:
        self._num_passes = 0
        """Number of backward passes so far. The passes of scaled losses and of predicted steps do
        not count."""
        self._num_records = 0
        """Number of records of non-finite gradients so far."""

    def _after_backward(self, event: BackwardEnded) -> None:
        """Check chosen gradients, and record the first non-finite gradients.

        After the first 64 passes, each pass checks at most one gradient, in turn.
        """
        # With a scaled loss, overflow is expected: the gradient scaler skips the step.
        if self._num_records >= _MAX_RECORDS or event.is_scaled:
            return
        thread = event.thread
        self._num_passes += 1
        entries = self._tracer.objects.optimizers.entries
        if self._num_passes <= _FULL_CHECK_PASSES:
            for entry in entries:
                if not _check_untraced_gradients(entry) and not entry.gradient_check.check_finite(
                    entry
                ):
                    self._record(entry, thread)
            return
        round_position = self._num_passes % (2 * len(entries) + _IDLE_PASSES)
        if 0 < round_position <= 2 * len(entries):
            entry = entries[(round_position - 1) // 2]
            # The norm that was read before clipping already shows non-finite gradients.
            if entry.last_norm_read_step >= entry.num_steps or _check_untraced_gradients(entry):
                return
            if not entry.gradient_check.check_finite(entry, round_position % 2):
                self._record(entry, thread)

    def _before_clip(self, event: NonFiniteNorm) -> None:
        """Record the non-finite gradients of all optimizers before clipping spreads them."""
        if self._num_records >= _MAX_RECORDS:
            return
        interner = self._tracer.events.interner
        for code in event.thread.step.codes:
            _, _, _, flags, _ = interner.event(code)
            if "scaled" in flags:  # with a scaled loss, overflow is expected
                return
        for entry in self._tracer.objects.optimizers.entries:
            self._record(entry, event.thread)

    def _on_nonfinite_loss(self, event: NonFiniteLoss) -> None:
        """At the first non-finite loss, record the weights that the last step made non-finite.

        They are recorded as corrupted weights or, if gradients were the cause, as non-finite
        gradients. Nothing is recorded if non-finite gradients were recorded before, or if the
        previous loss is unknown or non-finite.
        """
        tracer = self._tracer
        loss = event.thread.last_loss
        last_loss = math.nan if loss is None else float(loss)
        if self._num_records or not math.isfinite(last_loss):
            return
        # Stop all checks, because later non-finite values are consequences.
        self._num_records = _MAX_RECORDS
        for entry in tracer.objects.optimizers.entries:
            record = find_corrupted_weights(
                entry, tracer.objects, tracer.steps.last_step, last_loss
            )
            if record is not None:
                # "spoiled" is the stored record name of corrupted weights.
                kind = "gradient" if isinstance(record, NonFiniteGradientRecord) else "spoiled"
                tracer.recorder.write(kind, record)

    def _record(self, entry: OptimizerEntry, thread: ThreadState) -> None:
        """Record the non-finite gradients of an optimizer; nothing if all are finite."""
        tracer = self._tracer
        record = find_nonfinite_gradients(
            entry, tracer.objects, tracer.steps.last_step + 1, thread.step.losses
        )
        if record.parameters:
            self._num_records += 1
            tracer.recorder.write("gradient", record)
            # Sample the membership now, because the program may end before the next step.
            tracer.sampling.membership.ensure_first_sample(tracer.steps.last_step)


def _check_untraced_gradients(entry: OptimizerEntry) -> bool:
    """Return whether an optimizer still had gradients from before the trace; update the flag.

    The flag is cleared once the optimizer has stepped or its gradients were cleared.
    """
    had_untraced_gradients = entry.has_untraced_gradients
    if had_untraced_gradients:
        entry.has_untraced_gradients = not (entry.num_steps or entry.gradient_tracker.is_cleared)
    return had_untraced_gradients
