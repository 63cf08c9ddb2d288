"""Data loaders whose batches are used for training, and their epochs."""

from sluice.trace.records.batches import EpochRecord, LoaderRecord
from sluice.trace.records.trace import Trace


def training_loader_indices(trace: Trace) -> frozenset[int]:
    """Return the indices of loaders whose batches a network processes before a backward pass.

    A call of ``torch.autograd.grad`` (event "grad") counts as a backward pass. The flag "grad" of a
    forward pass means that its output requires gradients.
    """
    return frozenset(
        event.related_id
        for sequence in trace.sequences
        if sequence.final_event is not None
        for i, event in enumerate(sequence.events)
        if event.kind == "forward"
        and event.related_id >= 0
        and "grad" in event.flags
        and i < max(sequence.find("backward") + sequence.find("grad"), default=-1)
    )


def training_loaders(trace: Trace) -> tuple[LoaderRecord, ...]:
    """Return the records of the loaders used for training."""
    indices = training_loader_indices(trace)
    return tuple(loader for loader in trace.loaders if loader.index in indices)


def loader_epochs(trace: Trace, loader: int) -> tuple[EpochRecord, ...]:
    """Return the recorded epochs of a loader, in order."""
    return tuple(epoch for epoch in trace.epochs if epoch.loader == loader)


def count_epochs(trace: Trace) -> int:
    """Return the largest number of epochs that any training loader began; 0 without a loader."""
    epoch_counts = dict.fromkeys(training_loader_indices(trace), 0)
    for sequence in trace.sequences:
        for event in sequence.events:
            if event.kind == "epoch" and event.object_id in epoch_counts:
                epoch_counts[event.object_id] += sequence.count
    return max(epoch_counts.values(), default=0)
