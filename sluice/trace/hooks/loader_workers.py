"""Observes the random generators that datasets use in the worker processes of a loader.

A worker inherits the hooks by fork. It has no trace of its own: it appends its records to a file
beside the trace of its parent. All records of a batch are written at once, so that the lines of
different workers are not mixed.
"""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.utils.data import get_worker_info
from torch.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher

from sluice.trace.inspection.fingerprints import batch_fingerprint
from sluice.trace.inspection.random_generators import (
    GeneratorSource,
    find_generators,
    global_generators,
)
from sluice.trace.recording.storage import encode_line, workers_file
from sluice.trace.records.environment import WorkerRandomnessRecord
from sluice.trace.tracer_context import TracerContext

_NUM_INSPECTED_BATCHES = 2
"""Number of first batches of each worker process that are inspected."""

WorkerOrigin = tuple[Path, int, int]
"""Trace folder of the parent process of a worker, index of its loader, and number of its epoch."""


def make_worker_hook_installer(
    tracer: TracerContext, get_origin: Callable[[], WorkerOrigin | None]
) -> Callable[[], None]:
    """Return a function that installs the worker hooks. Call it before workers are forked.

    Hooks are installed only when a loader starts workers, so a program without workers has no
    overhead.

    Args:
        tracer: Provides the patches.
        get_origin: Returns the origin of the current worker; None if it is unknown.
    """
    observer, classes = _WorkerObserver(get_origin), [_MapDatasetFetcher, _IterableDatasetFetcher]

    def install() -> None:
        while classes:  # empty after the first call, so each class is hooked once
            cls = classes.pop()
            tracer.patches.replace(cls, "fetch", _wrap_fetch(tracer, observer, vars(cls)["fetch"]))

    return install


def _wrap_fetch(
    tracer: TracerContext, observer: "_WorkerObserver", original: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def fetch(fetcher: Any, indices: Any) -> Any:
        if (
            observer.num_batches >= _NUM_INSPECTED_BATCHES
            or get_worker_info() is None
            or not tracer.is_on
        ):
            return original(fetcher, indices)
        tracer.run_safely(observer.before_batch, fetcher)
        batch = original(fetcher, indices)
        tracer.run_safely(observer.after_batch, fetcher, batch)
        return batch

    return fetch


def _dataset_sources(fetcher: Any) -> list[GeneratorSource]:
    return find_generators({"dataset": fetcher.dataset, "collate_fn": fetcher.collate_fn})


class _WorkerObserver:
    """Observes the batches of one worker process; inactive in other processes."""

    def __init__(self, get_origin: Callable[[], WorkerOrigin | None]) -> None:
        self._get_origin = get_origin
        self.num_batches = 0
        """Number of inspected batches."""
        self._generator_states: list[tuple[GeneratorSource, int, int | None]] = []
        """Each generator with the fingerprint of its state before the batch, and its
        ``seed_identity``: a number that only a new seed changes; None if it is unknown. For a
        generator that the batch creates, the fingerprint of its seed is stored instead."""

    def before_batch(self, fetcher: Any) -> None:
        """Store the generator states before a batch."""
        sources = [*_dataset_sources(fetcher), *global_generators()]
        self._generator_states = [(s, s.state_fingerprint(), s.seed_identity()) for s in sources]

    def after_batch(self, fetcher: Any, batch: Any) -> None:
        """Write how a batch changed the generator states, and which generators it created."""
        known_ids = {id(source.generator) for source, _, _ in self._generator_states}
        created_sources = [s for s in _dataset_sources(fetcher) if id(s.generator) not in known_ids]
        self._generator_states += [
            (s, s.seed_fingerprint(), s.seed_identity()) for s in created_sources
        ]
        self.num_batches += 1
        origin, worker_info = self._get_origin(), get_worker_info()
        if origin is None or worker_info is None:
            return
        folder, loader, epoch = origin
        content = batch_fingerprint(batch)
        lines = [
            encode_line(
                "worker",
                WorkerRandomnessRecord(
                    loader=loader,
                    epoch=epoch,
                    worker=worker_info.id,
                    batch=self.num_batches,
                    source=source.path,
                    before=fingerprint_before,
                    after=source.state_fingerprint(),
                    reseeded=source.reseed_status(seed_identity),
                    content=content,
                ).model_dump(),
            )
            for source, fingerprint_before, seed_identity in self._generator_states
        ]
        folder.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        file_descriptor = os.open(workers_file(folder), flags, 0o666)
        try:
            os.write(file_descriptor, b"".join(lines))
        finally:
            os.close(file_descriptor)
