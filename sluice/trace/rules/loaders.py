"""The loaders that networks learn from, and their epochs."""

from sluice.trace.evidence.batches import EpochPrint, LoaderFact
from sluice.trace.evidence.trace import Trace


def learned_from(trace: Trace) -> frozenset[int]:
    """Return the loaders whose batches a backward pass followed."""
    return frozenset(
        mark.about
        for word in trace.words
        if word.step_mark is not None
        for i, mark in enumerate(word.marks)
        if mark.kind == "forward"
        and mark.about >= 0
        and "grad" in mark.flags
        and i < max(word.find("backward") + word.find("grad"), default=-1)
    )


def learning_loaders(trace: Trace) -> tuple[LoaderFact, ...]:
    """Return the facts of these loaders."""
    indices = learned_from(trace)
    return tuple(loader for loader in trace.loaders if loader.index in indices)


def epochs_of(trace: Trace, loader: int) -> tuple[EpochPrint, ...]:
    """Return the epochs of a loader that are told of, in order."""
    return tuple(epoch for epoch in trace.epochs if epoch.loader == loader)


def num_epochs(trace: Trace) -> int:
    """Return how often a loader was begun that networks learn from; 0 for none."""
    counts = dict.fromkeys(learned_from(trace), 0)
    for word in trace.words:
        for mark in word.marks:
            if mark.kind == "epoch" and mark.subject in counts:
                counts[mark.subject] += word.count
    return max(counts.values(), default=0)
