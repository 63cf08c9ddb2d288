"""The learning rate of an optimizer over its steps, from the changes that were recorded."""

from dataclasses import dataclass

from sluice.trace.evidence.trace import Trace
from sluice.trace.rules.steps import own_steps


@dataclass(frozen=True, slots=True)
class Rates:
    """The largest rate over the groups, since each of some steps; at least one."""

    steps: tuple[int, ...]
    values: tuple[float, ...]
    last: int
    """The last step of the optimizer."""

    @property
    def peak(self) -> float:
        """The largest one."""
        return max(self.values)

    def at(self, step: int) -> float:
        """Return the rate of a step."""
        told = [v for s, v in zip(self.steps, self.values, strict=True) if s <= step]
        return told[-1] if told else self.values[0]

    def share_fallen(self, to: float) -> float:
        """Return the share of steps, after that of the peak, at most so much of the peak."""
        ends = (*self.steps[1:], self.last + 1)
        told = list(zip(self.steps, ends, self.values, strict=True))
        after = told[self.values.index(self.peak) + 1 :]
        held = sum(max(end - begin, 0) for begin, end, rate in after if rate <= to * self.peak)
        return held / max(self.last + 1 - self.steps[0], 1)


def rates_of(trace: Trace, optimizer: int) -> Rates | None:
    """Return the rates of an optimizer; None when they were not recorded."""
    told = [r for r in trace.rates if r.optimizer == optimizer and r.rates]
    steps = own_steps(trace, optimizer)
    if not told or not steps:
        return None
    last = max(step.word.last_step for step in steps)
    return Rates(tuple(r.step for r in told), tuple(max(r.rates) for r in told), last)


def schedule_steps(trace: Trace, scheduler: int, *, before: int | None = None) -> int:
    """Return how many steps of a scheduler are told of: all, or those before a step."""
    found = 0
    for word in trace.words:
        times = sum(m.kind == "schedule" and m.subject == scheduler for m in word.marks)
        if times and (before is None or word.first_step < before):
            most = word.count if before is None else before - word.first_step
            found += times * min(word.count, most)
    return found


def first_schedule_step(trace: Trace, scheduler: int) -> int:
    """Return the step that comes after the first step of a scheduler; 0 for none."""
    return min(
        (
            word.first_step
            for word in trace.words
            if any(m.kind == "schedule" and m.subject == scheduler for m in word.marks)
        ),
        default=0,
    )
