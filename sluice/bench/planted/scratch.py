"""A temporary folder for the files of one run."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def scratch_folder(parent: Path | None = None) -> Iterator[Path]:
    """Yield an empty folder, which is removed afterwards.

    Args:
        parent: Folder in which the new folder is created; if None, the system's folder for
            temporary files.
    """
    with tempfile.TemporaryDirectory(
        dir=parent, prefix="sluice-bench-", ignore_cleanup_errors=True
    ) as created:
        yield Path(created)
