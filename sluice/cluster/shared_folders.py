"""Checks that workers see the same folders as this process, before a long run starts."""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from sluice.base.errors import SettingsError
from sluice.base.files import storage_error
from sluice.cluster.stale_files import process_prefix, remove_stale_files

ProbeFiles = tuple[tuple[Path, bytes], ...]
"""Paths and contents of the probe files that this process has written."""


@contextlib.contextmanager
def write_probe_files(folders: Sequence[Path]) -> Iterator[ProbeFiles]:
    """Write a probe file into each folder, which workers then try to read; remove it at the end.

    Raises:
        StorageError: A folder cannot be written.
    """
    with contextlib.ExitStack() as stack:
        probe_files = []
        for folder in folders:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                remove_stale_files(folder, "probe")
                probe = tempfile.NamedTemporaryFile(dir=folder, prefix=process_prefix("probe"))  # noqa: SIM115
                file = stack.enter_context(probe)
                file.write(file.name.encode())
                file.flush()
                Path(file.name).chmod(0o644)  # a worker may run as another user
            except OSError as error:
                raise storage_error(folder, error) from error
            probe_files.append((Path(file.name), file.name.encode()))
        yield tuple(probe_files)


def first_missing_folder(probe_files: ProbeFiles) -> Path | None:
    """Return the first folder that this worker does not share; None if it shares all folders.

    A folder is not shared if the worker cannot read its probe file or reads other content.
    """
    for path, content in probe_files:
        try:
            read_content = path.read_bytes()
        except OSError:
            return path.parent
        if read_content != content:
            return path.parent
    return None


def folder_not_shared_error(folder: Path, host: str) -> SettingsError:
    """Return the error for a folder that the worker on ``host`` does not share."""
    return SettingsError(
        f"The folder {folder} is not shared with the worker on '{host}'.",
        cause="Checkpoints and results are exchanged through folders that all machines of a "
        "cluster share.",
        fix="Mount a shared file system at the same path on every machine and set SLUICE_HOME to "
        "it.",
    )
