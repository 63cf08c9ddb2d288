"""DataLoaders: epochs, batches, the order of their rows, and the random states with them."""

import functools
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from sluice.trace.evidence.batches import (
    BatchPrint,
    EpochPrint,
    LoaderFact,
    RandomPrint,
)
from sluice.trace.fingerprints import (
    LOADER,
    FieldFingerprint,
    OrderFingerprint,
    field_fact,
    mixed,
    random_states,
    sketch_of,
    tensors_in,
)
from sluice.trace.samplers import sampler_facts
from sluice.trace.seams.workers import watch_workers
from sluice.trace.subjects import Registry
from sluice.trace.tracer import Tracer

_WATCHED_EPOCHS = 4
"""Epochs at the start of each loader that are looked at; later ones on powers of two."""

_MOST_LABELS = 64


@dataclass(slots=True)
class LoaderEntry:
    """One DataLoader of the program."""

    index: int
    ref: "weakref.ref[Any]"
    code: int
    """Of its batches."""
    epoch: int = 0
    num_batches: int = 0
    num_seen: int = 0
    is_hashed: bool = False
    """As many batches as are wanted have a fingerprint."""
    iterating: "_IteratorEntry | None" = None


@dataclass(slots=True)
class _IteratorEntry:
    index: int
    ref: "weakref.ref[Any]"
    loader: LoaderEntry | None = None
    order: OrderFingerprint = field(default_factory=OrderFingerprint)
    step: int = 0
    sampler_epoch: int = -1
    rows: list[int] = field(default_factory=list)
    """Fingerprints of the rows that were looked at."""
    labels: Counter[int] = field(default_factory=Counter)
    fields: dict[int, FieldFingerprint] = field(default_factory=dict)
    """Of tensors of floats, by their place."""


def watch_loaders(tracer: Tracer) -> None:
    """Mark every iteration over a DataLoader and every batch it hands over."""
    make_iter, make_next = DataLoader.__iter__, _BaseDataLoaderIter.__next__
    seen, local = _Loading(tracer), tracer.local

    @functools.wraps(make_iter)
    def watched_iter(loader: Any) -> Any:
        if tracer.is_on:
            tracer.guard(seen.making, loader)
        iterator = make_iter(loader)
        if tracer.is_on:
            tracer.guard(seen.begin, loader, iterator)
        return iterator

    @functools.wraps(make_next)
    def watched_next(iterator: Any) -> Any:
        try:
            batch = make_next(iterator)
        except StopIteration:
            if tracer.is_on:
                tracer.guard(seen.finish, iterator)
            raise
        if tracer.is_on:
            lane, known = local.lane, seen.current
            if lane.at >= 0 and known is not None and known.ref() is iterator:
                entry = known.loader
                if entry is not None and entry.code == lane.word[lane.at] and entry.is_hashed:
                    lane.at += 1
                    lane.loader = entry.index
                    entry.num_batches += 1
                    return batch
            try:
                seen.batch(iterator, batch)
            except Exception as error:  # as with ``guard``
                tracer.fail(error)
        return batch

    tracer.patches.replace(DataLoader, "__iter__", watched_iter)
    tracer.patches.replace(_BaseDataLoaderIter, "__next__", watched_next)
    tracer.on_begin.append(seen.reset)
    tracer.on_end.append(seen.end)
    seen.begin_workers = watch_workers(tracer, lambda: seen.for_workers)


class _Orders:
    """Sees the order of rows, in the epochs that are looked at."""

    _NAME = "_next_index"

    def __init__(self, tracer: Tracer, see: Callable[[Any, Any], None]) -> None:
        original: Any = _BaseDataLoaderIter._next_index

        @functools.wraps(original)
        def watched(iterator: Any) -> Any:
            indices = original(iterator)
            if tracer.is_on:
                tracer.guard(see, iterator, indices)
            return indices

        self._kinds = original, watched
        tracer.patches.on_restore(lambda: self.watch(wanted=False))

    def watch(self, *, wanted: bool) -> None:
        """See the order from now on, or leave it alone: few epochs of many are looked at."""
        old, new = self._kinds if wanted else self._kinds[::-1]
        if vars(_BaseDataLoaderIter)[self._NAME] is old:  # nobody wrapped ours
            setattr(_BaseDataLoaderIter, self._NAME, new)


class _Loading:
    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._orders = _Orders(tracer, self.indices)
        self.for_workers: tuple[Path, int, int] | None = None
        """Folder of the trace, loader and epoch of the workers that are made next: they are forked
        with it."""
        self.begin_workers: Callable[[], None] = lambda: None
        """Is called before they are."""
        self.reset()

    def reset(self) -> None:
        """Forget all loaders: at first, and in a process that was forked off."""
        self._loaders: Registry[LoaderEntry] = Registry(self._entry)
        self._all: list[tuple[LoaderFact, LoaderEntry]] = []
        self._iterators: Registry[_IteratorEntry] = Registry(
            lambda index, it: _IteratorEntry(index, weakref.ref(it))
        )
        self.current: _IteratorEntry | None = None
        """The one that gave the last batch."""

    def _entry(self, _: int, loader: Any) -> LoaderEntry:
        fact = _fact(len(self._all), loader)
        # Programs that make the loader anew for every epoch mean one and the same.
        for known, entry in self._all:
            same = {"index": known.index, "seed": known.seed}
            if entry.ref() is None and known == fact.model_copy(update=same):
                entry.ref = weakref.ref(loader)
                return entry
        code = self._tracer.code("batch", fact.index)
        entry = LoaderEntry(fact.index, weakref.ref(loader), code)
        self._all.append((fact, entry))
        self._tracer.recorder.write("loader", fact)
        return entry

    def making(self, loader: Any) -> None:
        """Hear that an iterator is about to be made."""
        entry = self._loaders.find(loader)
        self._watch_order(_is_watched(entry.epoch + 1))
        if loader.num_workers:
            self.for_workers = self._tracer.recorder.folder, entry.index, entry.epoch + 1
            self.begin_workers()

    def begin(self, loader: Any, iterator: Any) -> None:
        tracer = self._tracer
        entry = self._loaders.find(loader)
        self._close(entry, is_finished=False)
        entry.epoch += 1
        entry.iterating = self._iterators.find(iterator)
        entry.iterating.loader, entry.iterating.step = entry, tracer.steps
        tracer.mark(tracer.local.lane, "epoch", entry.index)
        if _is_watched(entry.epoch):
            began = tracer.clock()
            entry.iterating.sampler_epoch = sampler_facts(loader).epoch
            self._print_random()
            tracer.local.lane.spent += tracer.clock() - began
        self._watch_order(_is_watched(entry.epoch))

    def _watch_order(self, is_watched: bool) -> None:
        """Hear whether the epoch that runs now is looked at; another one may be, too."""
        others = (
            other.iterating is not None and _is_watched(other.epoch) for _, other in self._all
        )
        self._orders.watch(wanted=is_watched or any(others))

    def indices(self, iterator: Any, indices: Any) -> None:
        # Workers are given row numbers while the iterator is made, before its loader is known.
        numbers = indices if isinstance(indices, list) else [indices]
        iterating = self._iterators.find(iterator)
        watched = iterating.loader is None or _is_watched(iterating.loader.epoch)
        if watched and numbers and type(numbers[0]) is int:
            iterating.order.add(numbers)

    def batch(self, iterator: Any, batch: Any) -> None:
        tracer, known = self._tracer, self.current
        if known is None or known.ref() is not iterator:
            known = self.current = self._iterators.known(iterator)
        if known is None or known.loader is None:
            return
        entry, lane = known.loader, tracer.local.lane
        lane.loader = entry.index
        tracer.event(lane, entry.code)
        if tracer.has_statistics or not entry.is_hashed:
            began = tracer.clock()
            self._print_batch(entry, batch)
            if tracer.has_statistics:
                lane.spent += tracer.clock() - began
        entry.num_batches += 1
        entry.num_seen += 1
        entry.is_hashed = entry.num_seen >= tracer.settings.hashed_batches

    def finish(self, iterator: Any) -> None:
        known = self._iterators.known(iterator)
        if known is not None and known.loader is not None:
            self._close(known.loader, is_finished=True)
            lane = self._tracer.local.lane
            if lane.loader == known.loader.index:  # what follows is no batch of it
                lane.loader = -1

    def end(self) -> None:
        """Write what is known of the epochs that are open."""
        for _, entry in self._all:
            self._close(entry, is_finished=False)

    def _close(self, entry: LoaderEntry, *, is_finished: bool) -> None:
        iterating, entry.iterating = entry.iterating, None
        if iterating is None:
            return
        if _is_watched(entry.epoch):
            self._tracer.recorder.write("epoch", _epoch_print(entry, iterating, is_finished))
        entry.num_batches, iterating.order = 0, OrderFingerprint()
        iterating.rows, iterating.labels, iterating.fields = [], Counter(), {}

    def _print_batch(self, entry: LoaderEntry, batch: Any) -> None:
        tracer = self._tracer
        tensors = tensors_in(batch)
        first = next((t for t in tensors if t.dim() > 0 and t.numel()), None)
        words = tracer.settings.row_words
        rows = () if first is None else tracer.row_prints.of(first, words=words, place=LOADER)
        if entry.iterating is not None and _is_watched(entry.epoch):
            entry.iterating.rows += rows
            entry.iterating.labels.update(_labels(tensors))
            if not entry.is_hashed:
                for place in _float_fields(tensors):
                    fields = entry.iterating.fields
                    fields.setdefault(place, FieldFingerprint()).add(tensors[place])
        fact = BatchPrint(
            loader=entry.index,
            epoch=entry.epoch,
            position=entry.num_batches,
            step=tracer.steps,
            fields=tuple(map(field_fact, tensors)),
            rows=rows,
        )
        tracer.recorder.write_detail("batch", fact)

    def _print_random(self) -> None:
        ours, python, numpy = random_states()
        fact = RandomPrint(step=self._tracer.steps, torch=ours, python=python, numpy=numpy)
        self._tracer.recorder.write_detail("random", fact)


def _is_watched(epoch: int) -> bool:
    """Tell whether an epoch has a print: those of short epochs would cost more than the steps."""
    return epoch <= _WATCHED_EPOCHS or epoch & (epoch - 1) == 0


def _epoch_print(entry: LoaderEntry, iterating: _IteratorEntry, is_finished: bool) -> EpochPrint:
    order, rows = iterating.order.digests()
    return EpochPrint(
        loader=entry.index,
        epoch=entry.epoch,
        step=iterating.step,
        sampler_epoch=iterating.sampler_epoch,
        num_batches=entry.num_batches,
        num_indices=iterating.order.count,
        first=iterating.order.first,
        order=order,
        rows=rows,
        numbers=iterating.order.sketch(),
        contents=sketch_of(mixed(torch.tensor(iterating.rows, dtype=torch.int64))),
        num_contents=len(iterating.rows),
        labels=dict(iterating.labels) if len(iterating.labels) <= _MOST_LABELS else {},
        fields=tuple(some.fact(place) for place, some in iterating.fields.items()),
        is_finished=is_finished,
    )


def _float_fields(tensors: list[Tensor]) -> list[int]:
    """Return the places of tensors of precise floats, if one is not the first and may be a target.

    Halves repeat by chance.
    """
    found = [
        place
        for place, t in enumerate(tensors)
        if t.dtype in (torch.float32, torch.float64)
        and t.layout == torch.strided
        and t.dim()
        and t.numel()
    ]
    return found if any(found) else []


def _labels(tensors: list[Tensor]) -> list[int]:
    """Return the labels of a batch: its first whole numbers of one dimension after the inputs."""
    found = [t for t in tensors[1:] if t.dim() == 1 and not t.is_floating_point()]
    return found[0].tolist() if found and not found[0].is_complex() else []


def _fact(index: int, loader: Any) -> LoaderFact:
    try:
        num_rows = len(loader.dataset)
    except (TypeError, NotImplementedError):  # a stream
        num_rows = -1
    sampler = sampler_facts(loader)
    return LoaderFact(
        index=index,
        dataset=type(loader.dataset).__name__,
        num_rows=num_rows,
        sampler=type(loader.sampler).__name__,
        batch_size=-1 if loader.batch_size is None else loader.batch_size,
        num_workers=loader.num_workers,
        has_generator=loader.generator is not None,
        is_stream=isinstance(loader.dataset, IterableDataset),
        shuffles=sampler.shuffles,
        sets_epoch=sampler.sets_epoch,
        seed=sampler.seed,
        replicas=sampler.replicas,
        rank=sampler.rank,
    )
