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
    """Return the forward passes of which the step that ends a word has gradients.

    A backward pass follows them, and nothing clears what it left, as after a look at Fisher's
    information. Beside one in training mode, those in evaluation mode are an evaluation without
    ``no_grad``.
    """
    end = word.step_mark
    if end is None or end.kind != "step":
        return ()
    backward = word.find("backward")
    cleared = max(
        (i for i in word.find("zero") if word.marks[i].subject in (end.subject, -1)), default=-1
    )
    after = {i: next((b for b in backward if b > i), -1) for i, _ in forwards(word, network)}
    found = [m for i, m in forwards(word, network) if after[i] > cleared and "grad" in m.flags]
    training = [mark for mark in found if "training" in mark.flags]
    return tuple(training or found)
