"""Whether a worker sees the folders of this process, found out before hours are spent."""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from sluice.base.errors import SettingsError
from sluice.base.files import storage_error
from sluice.cluster.leftovers import own_prefix, remove_leftovers

Marks = tuple[tuple[Path, bytes], ...]
"""Files that were written here, and what is in them."""


@contextlib.contextmanager
def marked(folders: Sequence[Path]) -> Iterator[Marks]:
    """Put a file into each folder while the context lasts.

    Raises:
        StorageError: A folder cannot be written.
    """
    with contextlib.ExitStack() as stack:
        marks = []
        for folder in folders:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                remove_leftovers(folder, "mark")
                mark = tempfile.NamedTemporaryFile(dir=folder, prefix=own_prefix("mark"))  # noqa: SIM115
                file = stack.enter_context(mark)
                file.write(file.name.encode())
                file.flush()
                Path(file.name).chmod(0o644)  # a worker may run as somebody else
            except OSError as error:
                raise storage_error(folder, error) from error
            marks.append((Path(file.name), file.name.encode()))
        yield tuple(marks)


def first_unseen(marks: Marks) -> Path | None:
    """Return the first folder whose mark this process does not see; called in a worker."""
    for path, content in marks:
        try:
            seen = path.read_bytes()
        except OSError:
            return path.parent
        if seen != content:
            return path.parent
    return None


def not_shared(folder: Path, host: str) -> SettingsError:
    """Return the error that says that a worker on ``host`` has another folder of that name."""
    return SettingsError(
        f"The folder {folder} of this machine is not that of the worker on '{host}'.",
        cause="Checkpoints and results go through folders that all machines of a cluster share.",
        fix="Mount a shared file system at the same path on every machine and point SLUICE_HOME "
        "at it.",
    )
