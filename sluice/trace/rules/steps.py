"""The words of one optimizer, and how it is called in a message."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sluice.trace.evidence.order import Mark, StepWord
from sluice.trace.evidence.trace import Trace


@dataclass(frozen=True, slots=True)
class OwnStep:
    """A word that ends with a step, or a skipped one, of one optimizer."""

    word: StepWord
    end: Mark
    at: int
    """Position of the step's mark."""

    def before(self, *kinds: str) -> tuple[int, ...]:
        """Return the positions of some kinds of marks before the step."""
        return tuple(i for i, mark in enumerate(self.word.marks[: self.at]) if mark.kind in kinds)

    @property
    def last_backward(self) -> int:
        """Position of the last backward pass before the step; -1 for none."""
        return max(self.before("backward", "grad"), default=-1)


def own_steps(trace: Trace, optimizer: int) -> tuple[OwnStep, ...]:
    """Return the words of an optimizer without a closure, in the order of their first steps."""
    return _BY_OPTIMIZER.of(trace.words).get(optimizer, ())


class _ByOptimizer:
    """The words of the trace that was asked for last: every rule asks for each optimizer's."""

    def __init__(self) -> None:
        self._last: tuple[Sequence[StepWord], Mapping[int, tuple[OwnStep, ...]]] = (), {}

    def of(self, words: Sequence[StepWord]) -> Mapping[int, tuple[OwnStep, ...]]:
        """Return the words that end with a step, by optimizer."""
        known, told = self._last
        if known is not words:
            told = _sorted(words)
            self._last = words, told
        return told


def _sorted(words: Sequence[StepWord]) -> dict[int, tuple[OwnStep, ...]]:
    found: dict[int, list[OwnStep]] = {}
    for word in words:
        at = max(word.find("step") + word.find("skip"), default=-1)
        if at >= 0 and not word.is_open and not word.find("stepped"):
            found.setdefault(word.marks[at].subject, []).append(OwnStep(word, word.marks[at], at))
    return {optimizer: tuple(steps) for optimizer, steps in found.items()}


_BY_OPTIMIZER = _ByOptimizer()


def optimizers_in(trace: Trace) -> tuple[int, ...]:
    """Return the indices of the optimizers that made a step, in order."""
    made = {mark.subject for word in trace.words for mark in word.marks if mark.kind == "step"}
    return tuple(sorted(made))


def name_of(trace: Trace, optimizer: int) -> str:
    """Return what to call an optimizer: its class, numbered when there are several."""
    known = [] if trace.membership is None else list(trace.membership.optimizers)
    kind = next((o.kind for o in known if o.index == optimizer), "the optimizer")
    return kind if len(known) < 2 else f"{kind} (optimizer {optimizer})"


def total(steps: tuple[OwnStep, ...]) -> int:
    """Return how many steps the words stand for."""
    return sum(step.word.count for step in steps)


def first(steps: tuple[OwnStep, ...]) -> int:
    """Return the first step of some words."""
    return min(step.word.first_step for step in steps)
