"""Groups step sequences by the optimizer that ends them, and names optimizers for display."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sluice.trace.records.events import StepSequence, TraceEvent
from sluice.trace.records.trace import Trace


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    """A step sequence that ends with a step, or a skipped step, of one optimizer.

    It represents all steps with this sequence of events.
    """

    sequence: StepSequence
    end_event: TraceEvent
    """Event of the step or of the skipped step."""
    end_position: int
    """Position of ``end_event`` in the sequence."""

    def find_before(self, *kinds: str) -> tuple[int, ...]:
        """Return the positions of events of the given kinds before ``end_event``."""
        events = self.sequence.events[: self.end_position]
        return tuple(i for i, event in enumerate(events) if event.kind in kinds)

    @property
    def last_backward_position(self) -> int:
        """Position of the last ``backward()`` or ``torch.autograd.grad`` before ``end_event``.

        -1 without such a call.
        """
        return max(self.find_before("backward", "grad"), default=-1)


def steps_of(trace: Trace, optimizer: int) -> tuple[OptimizerStep, ...]:
    """Return the sequences that end with a step, or skipped step, of an optimizer.

    They are sorted by first step. Sequences with the event "stepped" are omitted: the optimizer has
    a closure that it did not always call exactly once, so passes of the closure may follow the
    event "step".
    """
    return _STEPS_BY_OPTIMIZER.get(trace.sequences).get(optimizer, ())


class _StepsByOptimizer:
    """Step sequences of the last inspected trace, by the optimizer whose step ends them.

    They are cached, because many rules request them for every optimizer.
    """

    def __init__(self) -> None:
        self._last_grouping: tuple[
            Sequence[StepSequence], Mapping[int, tuple[OptimizerStep, ...]]
        ] = (), {}

    def get(self, sequences: Sequence[StepSequence]) -> Mapping[int, tuple[OptimizerStep, ...]]:
        """Return the sequences that end with a step or skipped step, by optimizer index."""
        cached_sequences, steps_by_optimizer = self._last_grouping
        if cached_sequences is not sequences:
            steps_by_optimizer = _group_by_optimizer(sequences)
            self._last_grouping = sequences, steps_by_optimizer
        return steps_by_optimizer


def _group_by_optimizer(
    sequences: Sequence[StepSequence],
) -> dict[int, tuple[OptimizerStep, ...]]:
    steps_by_optimizer: dict[int, list[OptimizerStep]] = {}
    for sequence in sequences:
        position = max(sequence.find("step") + sequence.find("skip"), default=-1)
        if position >= 0 and not sequence.is_open and not sequence.find("stepped"):
            end_event = sequence.events[position]
            steps_by_optimizer.setdefault(end_event.object_id, []).append(
                OptimizerStep(sequence, end_event, position)
            )
    return {optimizer: tuple(steps) for optimizer, steps in steps_by_optimizer.items()}


_STEPS_BY_OPTIMIZER = _StepsByOptimizer()


def stepping_optimizers(trace: Trace) -> tuple[int, ...]:
    """Return the indices of the optimizers that made a step, in ascending order."""
    indices = {
        event.object_id
        for sequence in trace.sequences
        for event in sequence.events
        if event.kind == "step"
    }
    return tuple(sorted(indices))


def optimizer_name(trace: Trace, optimizer: int) -> str:
    """Return the display name of an optimizer: its class, with its index if there are several."""
    optimizers = () if trace.membership is None else trace.membership.optimizers
    kind = next((o.kind for o in optimizers if o.index == optimizer), "the optimizer")
    return kind if len(optimizers) < 2 else f"{kind} (optimizer {optimizer})"


def count_steps(steps: tuple[OptimizerStep, ...]) -> int:
    """Return the number of steps that the sequences represent."""
    return sum(step.sequence.count for step in steps)


def first_step_of(steps: tuple[OptimizerStep, ...]) -> int:
    """Return the number of the earliest step of the sequences."""
    return min(step.sequence.first_step for step in steps)


def last_step_of(steps: tuple[OptimizerStep, ...]) -> int:
    """Return the number of the latest step of the sequences."""
    return max(step.sequence.last_step for step in steps)
