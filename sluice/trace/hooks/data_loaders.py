"""Hooks for DataLoaders: epochs, batches, the order of their rows, and random states."""

import functools
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from sluice.trace.hooks.loader_records import (
    IterationEntry,
    LoaderEntry,
    epoch_record,
    float_field_positions,
    integer_labels,
    is_epoch_recorded,
    loader_record,
)
from sluice.trace.hooks.loader_workers import WorkerOrigin, make_worker_hook_installer
from sluice.trace.inspection.fingerprints import (
    LOADER,
    FieldSketch,
    OrderFingerprint,
    batch_tensors,
    field_record,
    random_state_fingerprints,
)
from sluice.trace.inspection.samplers import sampler_properties
from sluice.trace.objects.object_index import ObjectIndex
from sluice.trace.program_events import TraceBegan, TraceEnded
from sluice.trace.records.batches import BatchRecord, LoaderRecord, RandomStateRecord
from sluice.trace.thread_state import ThreadState
from sluice.trace.tracer_context import TracerContext


def watch_loaders(tracer: TracerContext) -> None:
    """Record every iteration over a DataLoader and every batch that it yields."""
    original_iter, original_next = DataLoader.__iter__, _BaseDataLoaderIter.__next__
    watch, local = _LoaderWatch(tracer), tracer.local

    @functools.wraps(original_iter)
    def watched_iter(loader: Any) -> Any:
        if tracer.is_on:
            tracer.run_safely(watch.before_iterator, loader)
        iterator = original_iter(loader)
        if tracer.is_on:
            tracer.run_safely(watch.on_iterator, loader, iterator)
        return iterator

    @functools.wraps(original_next)
    def watched_next(iterator: Any) -> Any:
        try:
            batch = original_next(iterator)
        except StopIteration:
            if tracer.is_on:
                tracer.run_safely(watch.on_exhausted, iterator)
            raise
        if tracer.is_on:
            try:
                iteration = watch.current_iteration
                if iteration is None or iteration.ref() is not iterator:
                    iteration = watch.set_current_iteration(iterator)
                if iteration is not None and iteration.loader is not None:
                    thread, entry = local.thread, iteration.loader
                    thread.last_loader = entry.index
                    tracer.events.record(thread, entry.batch_code)
                    if not entry.has_enough_fingerprints or tracer.sampling.samples_statistics:
                        watch.inspect(thread, entry, batch)
                    entry.num_batches += 1
            except Exception as error:  # inlines ``run_safely``, to save a call
                tracer.fail(error)
        return batch

    tracer.patches.replace(DataLoader, "__iter__", watched_iter)
    tracer.patches.replace(_BaseDataLoaderIter, "__next__", watched_next)
    tracer.bus.subscribe(TraceBegan, lambda _: watch.reset())
    tracer.bus.subscribe(TraceEnded, lambda _: watch.close())


class _IndexHook:
    """Hook that observes the row indices of batches; installed in epochs that are recorded."""

    _METHOD_NAME = "_next_index"

    def __init__(self, tracer: TracerContext, on_indices: Callable[[Any, Any], None]) -> None:
        original: Any = _BaseDataLoaderIter._next_index

        @functools.wraps(original)
        def watched(iterator: Any) -> Any:
            indices = original(iterator)
            if tracer.is_on:
                tracer.run_safely(on_indices, iterator, indices)
            return indices

        self._original_and_hook = original, watched
        tracer.patches.on_restore(lambda: self.set_installed(is_installed=False))

    def set_installed(self, *, is_installed: bool) -> None:
        """Install the hook, or remove it to save time in epochs that are not recorded.

        Nothing changes if other code has replaced the method.
        """
        original, hook = self._original_and_hook
        old_method, new_method = (original, hook) if is_installed else (hook, original)
        if vars(_BaseDataLoaderIter)[self._METHOD_NAME] is old_method:
            setattr(_BaseDataLoaderIter, self._METHOD_NAME, new_method)


class _LoaderWatch:
    def __init__(self, tracer: TracerContext) -> None:
        self._tracer = tracer
        self._index_hook = _IndexHook(tracer, self.on_indices)
        self.worker_origin: WorkerOrigin | None = None
        """Trace folder, loader index and epoch of the next workers. Workers inherit this value by
        fork. None before the first iteration with workers."""
        self._install_worker_hooks = make_worker_hook_installer(tracer, lambda: self.worker_origin)
        self.reset()

    def reset(self) -> None:
        """Forget all loaders, at the start of a trace."""
        self._loaders: ObjectIndex[LoaderEntry] = ObjectIndex(self._make_entry)
        """Entries by DataLoader. A new loader gets the entry of a deleted loader with equal
        settings."""
        self._recorded_loaders: list[tuple[LoaderRecord, LoaderEntry]] = []
        """Record and entry of each loader; the position is the index of the loader."""
        self._iterations: ObjectIndex[IterationEntry] = ObjectIndex(
            lambda index, iterator: IterationEntry(index, weakref.ref(iterator))
        )
        self.current_iteration: IterationEntry | None = None
        """Entry of the iterator that yielded the last batch."""

    def _make_entry(self, _: int, loader: Any) -> LoaderEntry:
        record = loader_record(len(self._recorded_loaders), loader)
        # Loaders that are created again for each epoch count as one loader, even with another seed.
        for earlier_record, entry in self._recorded_loaders:
            ignored_fields = {"index": earlier_record.index, "seed": earlier_record.seed}
            if entry.ref() is None and earlier_record == record.model_copy(update=ignored_fields):
                entry.ref = weakref.ref(loader)
                return entry
        batch_code = self._tracer.events.code("batch", record.index)
        entry = LoaderEntry(record.index, weakref.ref(loader), batch_code)
        entry.has_enough_fingerprints = not self._tracer.settings.fingerprinted_batches
        self._recorded_loaders.append((record, entry))
        self._tracer.recorder.write("loader", record)
        return entry

    def before_iterator(self, loader: Any) -> None:
        """End the previous epoch, before an iterator is created or reset for the next epoch."""
        entry = self._loaders.get_or_add(loader)
        self._close_epoch(entry, is_finished=False)
        self._update_index_hook(is_recorded=is_epoch_recorded(entry.epoch + 1))
        if loader.num_workers:
            self.worker_origin = self._tracer.recorder.folder, entry.index, entry.epoch + 1
            self._install_worker_hooks()

    def on_iterator(self, loader: Any, iterator: Any) -> None:
        """Begin an epoch of a loader, after the iterator of the epoch was created or reset."""
        tracer = self._tracer
        entry = self._loaders.get_or_add(loader)
        entry.epoch += 1
        entry.iteration = self._iterations.get_or_add(iterator)
        entry.iteration.loader, entry.iteration.step = entry, tracer.steps.last_step
        tracer.events.record_event(tracer.local.thread, "epoch", entry.index)
        if is_epoch_recorded(entry.epoch):
            began_ns = tracer.clock()
            entry.iteration.sampler_epoch = sampler_properties(loader).epoch
            self._record_random_states()
            tracer.local.thread.step.add_cost(tracer.clock() - began_ns)
        self._update_index_hook(is_recorded=is_epoch_recorded(entry.epoch))

    def _update_index_hook(self, *, is_recorded: bool) -> None:
        """Observe row indices if the epoch that begins, or any running epoch, is recorded.

        Args:
            is_recorded: Whether the epoch that begins is recorded.
        """
        is_needed = is_recorded or any(
            entry.iteration is not None and is_epoch_recorded(entry.epoch)
            for _, entry in self._recorded_loaders
        )
        self._index_hook.set_installed(is_installed=is_needed)

    def on_indices(self, iterator: Any, indices: Any) -> None:
        """Add the row indices of one batch to the order of its epoch, if the epoch is recorded."""
        row_indices = indices if isinstance(indices, list) else [indices]
        iteration = self._iterations.get_or_add(iterator)
        # Workers receive the first indices while the iterator is created or reset. For a new
        # iterator, the loader is not known yet. For a reset iterator, the indices belong to the
        # next epoch, which ``on_iterator`` has not begun yet.
        entry = iteration.loader
        is_recorded = entry is None or is_epoch_recorded(
            entry.epoch if entry.iteration is iteration else entry.epoch + 1
        )
        if is_recorded and row_indices and type(row_indices[0]) is int:
            iteration.order_fingerprint.add(row_indices)

    def set_current_iteration(self, iterator: Any) -> IterationEntry | None:
        """Set ``current_iteration`` to the entry of an iterator, and return the entry.

        The entry is None if the iterator is unknown.
        """
        self.current_iteration = self._iterations.get(iterator)
        return self.current_iteration

    def inspect(self, thread: ThreadState, entry: LoaderEntry, batch: Any) -> None:
        """Record one of the first batches, or a batch of a step with statistics."""
        tracer = self._tracer
        began_ns = tracer.clock()
        self._record_batch(entry, batch)
        if tracer.sampling.samples_statistics:
            thread.step.add_cost(tracer.clock() - began_ns)
        if not entry.has_enough_fingerprints:
            entry.num_fingerprinted_batches += 1
            entry.has_enough_fingerprints = (
                entry.num_fingerprinted_batches >= tracer.settings.fingerprinted_batches
            )

    def on_exhausted(self, iterator: Any) -> None:
        """End the epoch of an iterator that has no further batch."""
        iteration = self._iterations.get(iterator)
        if iteration is not None and iteration.loader is not None:
            self._close_epoch(iteration.loader, is_finished=True)
            thread = self._tracer.local.thread
            # Later calls of networks and losses are not assigned to this loader.
            if thread.last_loader == iteration.loader.index:
                thread.last_loader = -1

    def close(self) -> None:
        """Write the epochs that are not finished."""
        for _, entry in self._recorded_loaders:
            self._close_epoch(entry, is_finished=False)

    def _close_epoch(self, entry: LoaderEntry, *, is_finished: bool) -> None:
        iteration, entry.iteration = entry.iteration, None
        if iteration is None:
            return
        if is_epoch_recorded(entry.epoch):
            self._tracer.recorder.write("epoch", epoch_record(entry, iteration, is_finished))
        entry.num_batches, iteration.order_fingerprint = 0, OrderFingerprint()
        iteration.row_fingerprints, iteration.label_counts = [], Counter()
        iteration.field_sketches = {}

    def _record_batch(self, entry: LoaderEntry, batch: Any) -> None:
        tracer = self._tracer
        tensors = batch_tensors(batch)
        first_tensor = next((t for t in tensors if t.dim() > 0 and t.numel()), None)
        sample_size = tracer.settings.row_sample_size
        fingerprint_cache, row_fingerprints = tracer.sampling.fingerprint_cache, tuple[int, ...]()
        if first_tensor is not None:
            row_fingerprints = fingerprint_cache.fingerprint(
                first_tensor, sample_size=sample_size, stage=LOADER
            )
        if entry.iteration is not None and is_epoch_recorded(entry.epoch):
            entry.iteration.row_fingerprints += row_fingerprints
            entry.iteration.label_counts.update(integer_labels(tensors))
            if not entry.has_enough_fingerprints:
                for position in float_field_positions(tensors):
                    sketches = entry.iteration.field_sketches
                    sketches.setdefault(position, FieldSketch()).add(tensors[position])
        record = BatchRecord(
            loader=entry.index,
            epoch=entry.epoch,
            position=entry.num_batches,
            step=tracer.steps.last_step,
            fields=tuple(map(field_record, tensors)),
            rows=row_fingerprints,
        )
        tracer.recorder.write_detail("batch", record)

    def _record_random_states(self) -> None:
        torch_state, python_state, numpy_state = random_state_fingerprints()
        record = RandomStateRecord(
            step=self._tracer.steps.last_step,
            torch=torch_state,
            python=python_state,
            numpy=numpy_state,
        )
        self._tracer.recorder.write_detail("random", record)
