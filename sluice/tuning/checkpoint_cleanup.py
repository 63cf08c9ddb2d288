"""Removes the checkpoints of a study that no trial needs any more."""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from sluice.tuning.resumable.events import StudyEvent
    from sluice.tuning.resumable.study import Study


class CheckpointCleanup:
    """Listener of a study that removes a checkpoint after the trial has written a newer one.

    The last checkpoint of every trial is kept. With PBT, checkpoints that another trial may still
    copy are also kept. Checkpoints that an earlier process wrote are not removed. Files are removed
    in a separate thread. A failed removal is ignored, because the file only occupies space.

    Args:
        filesystem: pyarrow's file system of the study's storage; None for the local one.
    """

    def __init__(self, filesystem: Any) -> None:
        self._filesystem = filesystem
        self._last_paths: dict[int, str] = {}
        """Path of the last checkpoint of each trial."""
        self._replaced_paths: set[str] = set()
        """Paths of older checkpoints that were not removed, because they may still be copied."""
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="checkpoint-cleanup")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._executor.shutdown(cancel_futures=error is not None)

    def __call__(self, study: "Study", event: "StudyEvent") -> None:
        """Remove the checkpoints that are no longer needed after an event."""
        if not event.checkpoint:
            return
        previous_path = self._last_paths.get(event.trial)
        self._last_paths[event.trial] = event.checkpoint
        if previous_path is not None and previous_path != event.checkpoint:
            self._replaced_paths.add(previous_path)
        unneeded_paths = self._replaced_paths - study.checkpoints_needed()
        self._replaced_paths -= unneeded_paths
        for path in sorted(unneeded_paths):
            self._executor.submit(self._remove, path)

    def _remove(self, path: str) -> None:
        from pyarrow import fs

        filesystem = self._filesystem or fs.LocalFileSystem()
        with contextlib.suppress(OSError):
            filesystem.delete_dir(path)
