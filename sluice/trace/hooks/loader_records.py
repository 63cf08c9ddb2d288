"""Entries and records of DataLoaders and of their epochs."""

import weakref
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from sluice.trace.inspection.fingerprints import (
    FieldSketch,
    OrderFingerprint,
    make_sketch,
    mix64,
)
from sluice.trace.inspection.samplers import sampler_properties
from sluice.trace.records.batches import EpochRecord, LoaderRecord

_NUM_FIRST_EPOCHS = 4
"""Number of first epochs of each loader that are all recorded. Later epochs are recorded if their
number is a power of two."""

_MAX_LABELS = 64
"""Maximum number of distinct labels in an epoch. With more distinct labels, none are recorded."""


@dataclass(slots=True)
class LoaderEntry:
    """One DataLoader of the program."""

    index: int
    ref: "weakref.ref[Any]"
    batch_code: int
    """Event code of the batches of the loader."""
    epoch: int = 0
    """Number of the current or last epoch, counted from 1; 0 before the first epoch."""
    num_batches: int = 0
    """Number of batches of the current epoch so far."""
    num_fingerprinted_batches: int = 0
    """Number of batches that were fingerprinted so far, over all epochs. Counting ends at the
    configured number."""
    has_enough_fingerprints: bool = False
    """Whether the configured number of first batches is already fingerprinted."""
    iteration: "IterationEntry | None" = None
    """Running iteration; None between two epochs."""


@dataclass(slots=True)
class IterationEntry:
    """One iteration over a DataLoader."""

    index: int
    ref: "weakref.ref[Any]"
    loader: LoaderEntry | None = None
    """Loader of the iterator; None while the iterator is created."""
    order_fingerprint: OrderFingerprint = field(default_factory=OrderFingerprint)
    """Fingerprints of the sequence of row indices."""
    step: int = 0
    """Number of optimizer steps before the iteration."""
    sampler_epoch: int = -1
    """Epoch of the sampler, which ``set_epoch`` sets; -1 if the sampler has no epoch."""
    row_fingerprints: list[int] = field(default_factory=list)
    """Fingerprints of the rows of inspected batches."""
    label_counts: Counter[int] = field(default_factory=Counter)
    """Number of rows in inspected batches by label."""
    field_sketches: dict[int, FieldSketch] = field(default_factory=dict)
    """Sketches of the values of float tensors, by position in the batch."""


def is_epoch_recorded(epoch: int) -> bool:
    """Return whether an epoch is recorded. Recording every short epoch would cost too much."""
    return epoch <= _NUM_FIRST_EPOCHS or epoch & (epoch - 1) == 0


def epoch_record(entry: LoaderEntry, iteration: IterationEntry, is_finished: bool) -> EpochRecord:
    """Return a record of an epoch that ended."""
    ordered_digest, unordered_digest = iteration.order_fingerprint.digests()
    return EpochRecord(
        loader=entry.index,
        epoch=entry.epoch,
        step=iteration.step,
        sampler_epoch=iteration.sampler_epoch,
        num_batches=entry.num_batches,
        num_indices=iteration.order_fingerprint.num_indices,
        first=iteration.order_fingerprint.first_indices,
        order=ordered_digest,
        rows=unordered_digest,
        row_numbers=iteration.order_fingerprint.sketch(),
        contents=make_sketch(mix64(torch.tensor(iteration.row_fingerprints, dtype=torch.int64))),
        num_contents=len(iteration.row_fingerprints),
        labels=dict(iteration.label_counts) if len(iteration.label_counts) <= _MAX_LABELS else {},
        fields=tuple(
            sketch.record(position) for position, sketch in iteration.field_sketches.items()
        ),
        is_finished=is_finished,
    )


def float_field_positions(tensors: list[Tensor]) -> list[int]:
    """Return the positions of float32 and float64 tensors in a batch.

    The list is empty if only the first tensor, which is the input, has one of these types. Tensors
    of 16-bit floats are excluded, because their values repeat by chance.
    """
    positions = [
        position
        for position, t in enumerate(tensors)
        if t.dtype in (torch.float32, torch.float64) and t.dim() and t.numel()
    ]
    return positions if any(position > 0 for position in positions) else []


def integer_labels(tensors: list[Tensor]) -> list[int]:
    """Return the values of the first 1-D integer tensor after the first tensor, which is the input.

    Return [] if there is no such tensor.
    """
    labels = [t for t in tensors[1:] if t.dim() == 1 and not t.is_floating_point()]
    return labels[0].tolist() if labels and not labels[0].is_complex() else []


def loader_record(index: int, loader: Any) -> LoaderRecord:
    """Return the properties of a loader."""
    try:
        num_rows = len(loader.dataset)
    except (TypeError, NotImplementedError):  # a dataset without a length
        num_rows = -1
    sampler = sampler_properties(loader)
    return LoaderRecord(
        index=index,
        dataset=type(loader.dataset).__name__,
        num_rows=num_rows,
        sampler=type(loader.sampler).__name__,
        batch_size=-1 if loader.batch_size is None else loader.batch_size,
        num_workers=loader.num_workers,
        has_generator=loader.generator is not None,
        is_stream=isinstance(loader.dataset, IterableDataset),
        shuffles=sampler.shuffles,
        sets_epoch=sampler.has_set_epoch,
        seed=sampler.seed,
        replicas=sampler.num_shards,
        rank=sampler.shard_index,
    )
