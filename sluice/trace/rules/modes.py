"""The networks that learn, and the forward passes they learn from or are judged by."""

from sluice.trace.evidence.membership import NetworkFact
from sluice.trace.evidence.order import Mark, StepWord
from sluice.trace.evidence.trace import Trace


def learning_networks(trace: Trace) -> tuple[NetworkFact, ...]:
    """Return the networks of which an optimizer has a parameter."""
    now = trace.membership
    if now is None:
        return ()
    return tuple(n for n in now.networks if set(n.parameters) & now.optimized)


def forwards(word: StepWord, network: int) -> tuple[tuple[int, Mark], ...]:
    """Return the forward passes of a network in a word, with their positions."""
    marks = enumerate(word.marks)
    return tuple((i, m) for i, m in marks if m.kind == "forward" and m.subject == network)


def learns_from(word: StepWord, network: int) -> tuple[Mark, ...]:
    """Return the forward passes that a backward pass follows, in a word that ends with a step."""
    if word.step_mark is None or word.step_mark.kind != "step":
        return ()
    last = max(word.find("backward"), default=-1)
    return tuple(m for i, m in forwards(word, network) if i < last and "grad" in m.flags)
