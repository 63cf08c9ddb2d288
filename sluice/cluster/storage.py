"""Checks the storage of a search's results and checkpoints before the search starts.

Without this check, an unusable storage is detected only when a trial moves to another machine and
cannot read its checkpoint, possibly hours later.
"""

import contextlib
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from sluice.base.errors import SettingsError, StorageError
from sluice.base.files import storage_error
from sluice.cluster.ray_session import call_on_every_machine, has_several_machines
from sluice.cluster.settings import ComputeSettings
from sluice.cluster.stale_files import process_prefix, remove_stale_files

_RETRY_LIMIT_S = 60
"""Time for which the client of Google Cloud Storage retries a request [s]; by default 15 min."""


def tune_storage(
    compute: ComputeSettings, folder: Path, log: Callable[[str], None] = lambda _line: None
) -> tuple[str, Any]:
    """Return ``storage_path`` and ``storage_filesystem`` of ``ray.tune.RunConfig``.

    The storage is checked: this process writes a small probe file, every machine of the active Ray
    session (``join_ray``) reads the file, and the file is deleted.

    Args:
        compute: Settings with ``storage_path``: a folder, or a URL that pyarrow or fsspec supports.
            Options of pyarrow are in the query of the URL
            (``s3://bucket/prefix?endpoint_override=http://127.0.0.1:5000``).
        folder: Folder of the study, which is used if ``storage_path`` is not set.
        log: Receives a line about each machine that does not answer.

    Returns:
        The path on the file system, and pyarrow's file system or None for a local folder.

    Raises:
        SettingsError: Neither pyarrow nor fsspec supports the URL, or a machine of the cluster does
            not share the folder.
        StorageError: The storage cannot be written, or a machine of the cluster cannot read it.

    Cost:
        Milliseconds on one machine. On a cluster, the start of a worker on each machine, and a
        minute if a machine does not answer.
    """
    url = compute.storage_path or str(folder)
    if "://" not in url or url.startswith("file://"):
        path = Path(url.removeprefix("file://")).expanduser().absolute()
        _check_folder(path, compute, log)
        return str(path), None
    filesystem, prefix = _open_filesystem(url)
    with _probe_file(filesystem, prefix, url) as (probe, content):
        for host, reason in _find_failed_reads(filesystem, probe, content, compute, log):
            raise StorageError(
                f"compute.storage_path '{url}' can be written here, but the machine {host} of the "
                f"cluster cannot read it: {reason}.",
                cause="The workers of that machine have no credentials, or cannot reach the "
                "address.",
                fix="Set the credentials in compute.runtime_env.env_vars or give the machine a "
                "role that may read and write there, and check that it can reach the address.",
            )
    return prefix, filesystem


def _check_folder(path: Path, compute: ComputeSettings, log: Callable[[str], None]) -> None:
    from pyarrow import fs

    probe, content = path / _probe_name(), secrets.token_bytes(16)
    try:
        path.mkdir(parents=True, exist_ok=True)
        remove_stale_files(path, "storage")
        probe.write_bytes(content)
        probe.chmod(0o644)  # a worker may run as another user
    except OSError as error:
        raise storage_error(path, error) from error
    try:
        for host, reason in _find_failed_reads(
            fs.LocalFileSystem(), str(probe), content, compute, log
        ):
            raise SettingsError(
                f"Results and checkpoints are written to the folder {path}, which the machine "
                f"{host} of the cluster cannot read: {reason.rstrip('.')}.",
                cause="A trial that moves to another machine resumes from its checkpoint, so all "
                "machines must share the storage.",
                fix="Set compute.storage_path to a URL such as 's3://bucket/prefix', or to a "
                "folder that is mounted at the same path on every machine.",
            )
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


def _open_filesystem(url: str) -> tuple[Any, str]:
    from pyarrow import ArrowException
    from pyarrow.fs import FileSystem

    try:
        filesystem, path = FileSystem.from_uri(_with_retry_limit(url))
    except (ArrowException, ValueError, OSError, NotImplementedError) as error:
        if not _is_unsupported(error):
            raise _unusable_url_error(url, _first_line(error)) from error
        filesystem, path = _open_by_fsspec(url)
    path = path.strip("/") if urlsplit(url).netloc else path
    if not path:
        raise _unusable_url_error(url, "it does not name a bucket")
    return filesystem, path


def _is_unsupported(error: Exception) -> bool:
    return isinstance(error, NotImplementedError) or "Unrecognized filesystem" in str(error)


def _open_by_fsspec(url: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    try:
        filesystem, path = url_to_fs(url)
    except (ImportError, ValueError, TypeError, OSError) as error:
        raise _unusable_url_error(
            url, f"pyarrow does not support it, and fsspec reports: {_first_line(error)}"
        ) from error
    return PyFileSystem(FSSpecHandler(filesystem)), path


def _with_retry_limit(url: str) -> str:
    """Add a retry limit to a URL of Google Cloud Storage that has no retry limit.

    Other URLs are returned unchanged.
    """
    url_parts = urlsplit(url)
    if url_parts.scheme not in ("gs", "gcs") or "retry_limit_seconds" in url_parts.query:
        return url
    limit = f"retry_limit_seconds={_RETRY_LIMIT_S}"
    query = f"{url_parts.query}&{limit}" if url_parts.query else limit
    return urlunsplit(url_parts._replace(query=query))


@contextlib.contextmanager
def _probe_file(filesystem: Any, prefix: str, url: str) -> Iterator[tuple[str, bytes]]:
    from pyarrow import ArrowException

    probe, content = f"{prefix}/{_probe_name()}", secrets.token_bytes(16)
    # The client libraries of clouds raise other errors, too. They are not converted, because they
    # have no common base class.
    try:
        with filesystem.open_output_stream(probe) as stream:
            stream.write(content)
    except (ArrowException, OSError, ValueError) as error:
        raise StorageError(
            f"compute.storage_path '{url}' cannot be written: creating '{probe}' failed with "
            f"'{_first_line(error)}'.",
            cause="The bucket does not exist, the credentials of this process do not permit "
            "writing, or the address is wrong.",
            fix="Create the bucket, set the credentials in the environment (such as "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY), or correct compute.storage_path.",
        ) from error
    try:
        yield probe, content
    finally:
        with contextlib.suppress(ArrowException, OSError):
            filesystem.delete_file(probe)


def _find_failed_reads(
    filesystem: Any,
    probe: str,
    content: bytes,
    compute: ComputeSettings,
    log: Callable[[str], None],
) -> list[tuple[str, str]]:
    """Return (host, reason) of each machine that cannot read the probe file."""
    if compute.address is None and not has_several_machines():
        return []  # this machine wrote the file

    def read() -> str:
        try:
            with filesystem.open_input_stream(probe) as stream:
                read_content = stream.read()
        except Exception as error:  # worker boundary: client libraries of clouds may raise anything
            return f"{type(error).__name__}: {error}"
        if read_content == content:
            return ""
        return "the file has different content there, so another storage is mounted at this path"

    failures = []
    for machine in call_on_every_machine(read):
        if machine.is_silent:
            log(
                f"The machine {machine.host} of the cluster did not start a worker in time, so it "
                "is unknown whether it can read checkpoints. A trial that is scheduled there may "
                "wait. Read the log raylet.out on that machine, or remove it from the cluster."
            )
        elif reason := machine.error or machine.value:
            failures.append((machine.host, reason))
    return failures


def _unusable_url_error(url: str, reason: str) -> SettingsError:
    return SettingsError(
        f"compute.storage_path '{url}' cannot be used: {reason}.",
        fix="Set a folder, or a URL that pyarrow or an installed fsspec package supports: "
        "s3://bucket/prefix, gs://bucket/prefix, abfs://container@account/prefix.",
    )


def _probe_name() -> str:
    return f"{process_prefix('storage')}{secrets.token_hex(4)}"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
