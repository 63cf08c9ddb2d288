"""Removes checkpoints of a study from which no trial will start."""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from sluice.tuning.resumable.events import StudyEvent
    from sluice.tuning.resumable.study import Study


class CheckpointCleanup:
    """Listener of a study that removes replaced checkpoints.

    Every trial keeps its last checkpoint, and PBT keeps those that another trial may still copy.
    Files are removed in a separate thread; a file that cannot be removed does no harm.

    Args:
        filesystem: pyarrow's file system of the study's storage; None for the local one.
    """

    def __init__(self, filesystem: Any) -> None:
        self._filesystem = filesystem
        self._last: dict[int, str] = {}
        self._replaced: set[str] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint-cleanup")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.shutdown(cancel_futures=error is not None)

    def __call__(self, study: "Study", event: "StudyEvent") -> None:
        """Process an event that took effect."""
        if not event.checkpoint:
            return
        before = self._last.get(event.trial)
        self._last[event.trial] = event.checkpoint
        if before is not None and before != event.checkpoint:
            self._replaced.add(before)
        unneeded = self._replaced - study.checkpoints_needed()
        self._replaced -= unneeded
        for path in sorted(unneeded):
            self._thread.submit(self._remove, path)

    def _remove(self, path: str) -> None:
        from pyarrow import fs

        filesystem = self._filesystem or fs.LocalFileSystem()
        with contextlib.suppress(OSError):
            filesystem.delete_dir(path)
