"""Finds the first non-finite gradients, before a clip and a step spread them."""

import math
from typing import TYPE_CHECKING

from sluice.trace.object_tracker import OptimizerEntry
from sluice.trace.parameter_values import corrupted_weights, nonfinite_gradients
from sluice.trace.records.parameter_values import NonFiniteGradientRecord
from sluice.trace.thread_state import ThreadState

if TYPE_CHECKING:  # the tracer creates these checks
    from sluice.trace.tracer import Tracer

_MAX_RECORDS = 3
"""Maximum number of records of non-finite gradients."""

_FULL_CHECK_PASSES = 64
"""Number of initial backward passes; all sampled gradients are checked after each of them."""

_IDLE_PASSES = 5
"""Number of passes per round without a check. Odd, so that with two alternating optimizers both get
checked; a non-finite loss would reveal anything missed. A round of one or two optimizers is shorter
than 10 passes."""


class GradientChecks:
    """Checks a few gradients after each backward pass, and all gradients if one is non-finite."""

    def __init__(self, tracer: "Tracer") -> None:
        self._tracer = tracer
        self._num_passes = self._num_records = 0

    def after_backward(self, thread: ThreadState) -> None:
        """Check sampled gradients, and record the first non-finite ones.

        After the initial passes, at most one gradient is checked per pass, in turn. If two
        optimizers alternate, an odd round length ensures that both are checked.
        """
        if self._num_records >= _MAX_RECORDS:
            return
        self._num_passes += 1
        entries = self._tracer.objects.optimizers.entries
        if self._num_passes <= _FULL_CHECK_PASSES:
            for entry in entries:
                is_dormant = entry.is_dormant and _update_dormant(entry)
                if not is_dormant and not entry.gradient_sample.is_finite(entry):
                    self._record(entry, thread)
            return
        turn = self._num_passes % (2 * len(entries) + _IDLE_PASSES)
        if 0 < turn <= 2 * len(entries):
            entry = entries[(turn - 1) // 2]
            # Clipping reads the norm of all gradients of the optimizer anyway.
            if entry.last_clipped_step >= entry.steps or (
                entry.is_dormant and _update_dormant(entry)
            ):
                return
            if not entry.gradient_sample.is_finite(entry, turn % 2):
                self._record(entry, thread)

    def before_clip(self, thread: ThreadState) -> None:
        """Record the non-finite gradients. Called when the total gradient norm is non-finite."""
        # Gradients that overflow under a loss scale are no fault.
        interner = self._tracer.recorder.interner
        if self._num_records < _MAX_RECORDS and not any(
            "scaled" in interner.event(code)[3] for code in thread.codes
        ):
            for entry in self._tracer.objects.optimizers.entries:
                self._record(entry, thread)

    def on_nonfinite_loss(self) -> None:
        """At the first non-finite loss, record which weights the last step corrupted."""
        tracer = self._tracer
        last = tracer.local.thread.last_loss
        loss = math.nan if last is None else float(last)
        if self._num_records or not math.isfinite(loss):
            return
        self._num_records = _MAX_RECORDS
        for entry in tracer.objects.optimizers.entries:
            record = corrupted_weights(entry, tracer.objects, tracer.steps, loss)
            if record is not None:
                # "spoiled" is the stored record name of corrupted weights.
                kind = "gradient" if isinstance(record, NonFiniteGradientRecord) else "spoiled"
                tracer.recorder.write(kind, record)

    def _record(self, entry: OptimizerEntry, thread: ThreadState) -> None:
        tracer = self._tracer
        record = nonfinite_gradients(entry, tracer.objects, tracer.steps + 1, thread)
        if record.parameters:
            self._num_records += 1
            tracer.recorder.write("gradient", record)
            # The program may end before the next step.
            tracer.membership_sampler.sample_first(tracer.steps)


def _update_dormant(entry: OptimizerEntry) -> bool:
    """Clear ``is_dormant`` once the optimizer has stepped or its gradients were cleared.

    A dormant optimizer has gradients from before the trace and was not used since.

    Returns:
        Always True: the change takes effect at the next check.
    """
    entry.is_dormant = not (entry.steps or entry.gradient_tracker.is_cleared)
    return True
