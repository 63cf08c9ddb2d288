"""Randomness that a dataset holds, seen in the workers of a loader.

A worker is forked with what is replaced here. It writes what it sees as whole lines beside the
trace of its parent, and has none of its own.
"""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.utils.data import get_worker_info
from torch.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher

from sluice.trace.evidence.surroundings import WorkerFact
from sluice.trace.fingerprints import content_fingerprint
from sluice.trace.generators import Source, find_sources, process_sources
from sluice.trace.storage import line_of, workers_file
from sluice.trace.tracer import Tracer

_LOOKS = 2
"""Batches at the start of each worker."""

Parent = tuple[Path, int, int]
"""Folder of the trace, loader, epoch."""


def watch_workers(tracer: Tracer, parent: Callable[[], Parent | None]) -> Callable[[], None]:
    """Return what is called before workers are forked, to look at the first batches of each.

    Nothing is replaced before: a program that loads without workers pays nothing.

    Args:
        tracer: Of this process.
        parent: Tells the worker whose it is.
    """
    looks, kinds = _Looks(parent), [_MapDatasetFetcher, _IterableDatasetFetcher]

    def begin() -> None:
        while kinds:
            cls = kinds.pop()
            tracer.patches.replace(cls, "fetch", _watched(tracer, looks, vars(cls)["fetch"]))

    return begin


def _watched(tracer: Tracer, looks: "_Looks", original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def fetch(fetcher: Any, indices: Any) -> Any:
        if looks.num >= _LOOKS or get_worker_info() is None or not tracer.is_on:
            return original(fetcher, indices)
        tracer.guard(looks.before, fetcher)
        batch = original(fetcher, indices)
        tracer.guard(looks.after, fetcher, batch)
        return batch

    return fetch


def _held_by(fetcher: Any) -> list[Source]:
    return find_sources({"dataset": fetcher.dataset, "collate_fn": fetcher.collate_fn})


class _Looks:
    """What one worker process has seen; in any other process nothing."""

    def __init__(self, parent: Callable[[], Parent | None]) -> None:
        self._parent = parent
        self.num = 0
        self._sources: list[tuple[Source, int, int | None]] = []

    def before(self, fetcher: Any) -> None:
        """Remember the states before a batch."""
        sources = [*_held_by(fetcher), *process_sources()]
        self._sources = [(s, s.state(), s.stream()) for s in sources]

    def after(self, fetcher: Any, batch: Any) -> None:
        """Write what a batch did to them, and to those that were made for it."""
        known = {id(source.generator) for source, _, _ in self._sources}
        made = [s for s in _held_by(fetcher) if id(s.generator) not in known]
        self._sources += [(s, s.stream_state(), s.stream()) for s in made]
        self.num = self.num + 1 if self._sources else _LOOKS
        parent, info = self._parent(), get_worker_info()
        if parent is None or info is None:
            return
        folder, loader, epoch = parent
        content = content_fingerprint(batch)
        lines = [
            line_of(
                "worker",
                WorkerFact(
                    loader=loader,
                    epoch=epoch,
                    worker=info.id,
                    batch=self.num,
                    source=source.path,
                    before=before,
                    after=source.state(),
                    reseeded=source.was_reseeded(stream),
                    content=content,
                ).model_dump(),
            )
            for source, before, stream in self._sources
        ]
        if lines:
            folder.parent.mkdir(parents=True, exist_ok=True)
            mode = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            handle = os.open(workers_file(folder), mode, 0o666)
            try:
                os.write(handle, b"".join(lines))
            finally:
                os.close(handle)
