"""Learning rate of an optimizer over its steps, from the recorded changes."""

from dataclasses import dataclass

from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.optimizer_steps import last_step_of, steps_of


@dataclass(frozen=True, slots=True)
class LearningRates:
    """Learning rate of one optimizer over its steps: the largest over its parameter groups.

    ``values[i]`` is the learning rate from step ``steps[i]`` on. There is at least one value.
    """

    steps: tuple[int, ...]
    values: tuple[float, ...]
    last_step: int
    """Number of the last step of the optimizer."""

    @property
    def peak(self) -> float:
        """Largest recorded learning rate of the optimizer."""
        return max(self.values)

    def rate_at(self, step: int) -> float:
        """Return the learning rate at a step; before ``steps[0]``, the first recorded rate."""
        values = [v for s, v in zip(self.steps, self.values, strict=True) if s <= step]
        return values[-1] if values else self.values[0]

    def low_share(self, max_low_ratio: float) -> float:
        """Return the share of all steps that come after the peak and have a low learning rate.

        Args:
            max_low_ratio: Highest learning rate that counts as low, relative to the peak.
        """
        end_steps = (*self.steps[1:], self.last_step + 1)
        intervals = list(zip(self.steps, end_steps, self.values, strict=True))
        intervals_after_peak = intervals[self.values.index(self.peak) + 1 :]
        max_low_rate = max_low_ratio * self.peak
        num_low_steps = sum(
            max(end_step - begin_step, 0)
            for begin_step, end_step, rate in intervals_after_peak
            if rate <= max_low_rate
        )
        return num_low_steps / max(self.last_step + 1 - self.steps[0], 1)


def learning_rates(trace: Trace, optimizer: int) -> LearningRates | None:
    """Return the learning rates of an optimizer; None if no rate or no step was recorded."""
    records = [r for r in trace.rates if r.optimizer == optimizer and r.rates]
    steps = steps_of(trace, optimizer)
    if not records or not steps:
        return None
    return LearningRates(
        tuple(r.step for r in records), tuple(max(r.rates) for r in records), last_step_of(steps)
    )


def count_scheduler_calls(trace: Trace, scheduler: int, *, before_step: int | None = None) -> int:
    """Return the number of recorded calls of ``scheduler.step()``: all, or those before a step.

    Args:
        trace: Trace of one process.
        scheduler: Index of the scheduler.
        before_step: Optimizer step before which calls are counted; None for all calls. With a
            step, the number is an upper bound if steps with different sequences alternate.
    """
    num_calls = 0
    for sequence in trace.sequences:
        num_calls_per_occurrence = sum(
            event.kind == "schedule" and event.object_id == scheduler for event in sequence.events
        )
        if num_calls_per_occurrence and (before_step is None or sequence.first_step < before_step):
            max_occurrences = (
                sequence.count if before_step is None else before_step - sequence.first_step
            )
            num_calls += num_calls_per_occurrence * min(sequence.count, max_occurrences)
    return num_calls


def step_of_first_scheduler_call(trace: Trace, scheduler: int) -> int:
    """Return the number of the optimizer step that follows the first call of ``scheduler.step()``.

    If no optimizer step follows, return the number of the last step before the call. 0 without a
    call.
    """
    return min(
        (
            sequence.first_step
            for sequence in trace.sequences
            if any(e.kind == "schedule" and e.object_id == scheduler for e in sequence.events)
        ),
        default=0,
    )
