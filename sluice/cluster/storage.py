"""Where a search writes results and checkpoints, tried before hours are spent.

Ray Tune finds out that a machine cannot read a checkpoint when a trial moves there, hours later.
"""

import contextlib
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from sluice.base.errors import SettingsError, StorageError
from sluice.base.files import storage_error
from sluice.cluster.leftovers import own_prefix, remove_leftovers
from sluice.cluster.ray_session import ask_every_machine, has_several_machines
from sluice.cluster.settings import ComputeSettings

_RETRY_LIMIT_S = 60
"""Google's client tries for 15 minutes of its own choice."""


def tune_storage(
    compute: ComputeSettings, folder: Path, say: Callable[[str], None] = lambda _line: None
) -> tuple[str, Any]:
    """Return ``storage_path`` and ``storage_filesystem`` of ``ray.tune.RunConfig``.

    A small file is written there, read by every machine of the Ray that this process has joined
    (``join_ray``), and deleted.

    Args:
        compute: ``storage_path`` is a folder, or a URL that pyarrow or fsspec takes, with the
            options of pyarrow in its query
            (``s3://bucket/prefix?endpoint_override=http://127.0.0.1:5000``).
        folder: The study's own folder, used where ``storage_path`` is not set.
        say: Gets a line about each machine that does not answer, as a logger does.

    Returns:
        The path on the file system, and pyarrow's file system; None for a folder.

    Raises:
        SettingsError: The URL is not one that pyarrow or fsspec takes, or a machine of the cluster
            has another folder of that name.
        StorageError: It cannot be written, or a machine of the cluster cannot read it.

    Cost:
        Milliseconds on one machine, and for a cluster the start of a worker on each machine; a
        minute where a machine does not answer.
    """
    url = compute.storage_path or str(folder)
    if "://" not in url or url.startswith("file://"):
        path = Path(url.removeprefix("file://")).expanduser().absolute()
        _try_folder(path, compute, say)
        return str(path), None
    filesystem, prefix = _open(url)
    with _mark_on(filesystem, prefix, url) as (mark, content):
        for host, why in _unread(filesystem, mark, content, compute, say):
            raise StorageError(
                f"compute.storage_path '{url}' was written here, and the machine {host} of the "
                f"cluster cannot read it: {why}.",
                cause="Its workers have no credentials, or no way to that address.",
                fix="Set the credentials by compute.runtime_env.env_vars or give the machine a "
                "role that may read and write there, and check that it reaches the address.",
            )
    return prefix, filesystem


def _try_folder(path: Path, compute: ComputeSettings, say: Callable[[str], None]) -> None:
    from pyarrow import fs

    mark, content = path / _mark_name(), secrets.token_bytes(16)
    try:
        path.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path, "storage")
        mark.write_bytes(content)
        mark.chmod(0o644)  # a worker may run as another user
    except OSError as error:
        raise storage_error(path, error) from error
    try:
        for host, _ in _unread(fs.LocalFileSystem(), str(mark), content, compute, say):
            raise SettingsError(
                f"Results and checkpoints go to the folder {path}, and the machine {host} of "
                "the cluster does not see what this machine writes there.",
                cause="A trial that moves to another machine goes on from its checkpoint, so all "
                "machines must share the storage.",
                fix="Set compute.storage_path to a URL such as 's3://bucket/prefix', or to a "
                "folder that is mounted at the same path on every machine.",
            )
    finally:
        with contextlib.suppress(OSError):
            mark.unlink()


def _open(url: str) -> tuple[Any, str]:
    from pyarrow import ArrowException
    from pyarrow.fs import FileSystem

    try:
        filesystem, path = FileSystem.from_uri(_bounded(url))
    except (ArrowException, ValueError, OSError, NotImplementedError) as error:
        if not _is_unknown(error):
            raise _refused(url, _first_line(error)) from error
        filesystem, path = _open_by_fsspec(url)
    path = path.strip("/") if urlsplit(url).netloc else path
    if not path:
        raise _refused(url, "it names no bucket")
    return filesystem, path


def _is_unknown(error: Exception) -> bool:
    return isinstance(error, NotImplementedError) or "Unrecognized filesystem" in str(error)


def _open_by_fsspec(url: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    try:
        filesystem, path = url_to_fs(url)
    except (ImportError, ValueError, TypeError, OSError) as error:
        raise _refused(
            url, f"pyarrow does not know it, and fsspec: {_first_line(error)}"
        ) from error
    return PyFileSystem(FSSpecHandler(filesystem)), path


def _bounded(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("gs", "gcs") or "retry_limit_seconds" in parts.query:
        return url
    limit = f"retry_limit_seconds={_RETRY_LIMIT_S}"
    query = f"{parts.query}&{limit}" if parts.query else limit
    return urlunsplit(parts._replace(query=query))


@contextlib.contextmanager
def _mark_on(filesystem: Any, prefix: str, url: str) -> Iterator[tuple[str, bytes]]:
    from pyarrow import ArrowException

    mark, content = f"{prefix}/{_mark_name()}", secrets.token_bytes(16)
    # fsspec's file systems raise errors of their cloud's client, which have no common base.
    try:
        with filesystem.open_output_stream(mark) as stream:
            stream.write(content)
    except (ArrowException, OSError, ValueError) as error:
        raise StorageError(
            f"compute.storage_path '{url}' cannot be written: creating '{mark}' came back with "
            f"'{_first_line(error)}'.",
            cause="The bucket does not exist, the credentials of this process do not allow it, or "
            "the address is wrong.",
            fix="Create the bucket, set the credentials in the environment (such as "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY), or correct compute.storage_path.",
        ) from error
    try:
        yield mark, content
    finally:
        with contextlib.suppress(ArrowException, OSError):
            filesystem.delete_file(mark)


def _unread(
    filesystem: Any,
    mark: str,
    content: bytes,
    compute: ComputeSettings,
    say: Callable[[str], None],
) -> list[tuple[str, str]]:
    """Return host and reason of each machine that does not read the mark as it was written."""
    if compute.address is None and not has_several_machines():
        return []  # this machine wrote it

    def read() -> str:
        try:
            with filesystem.open_input_stream(mark) as stream:
                seen = stream.read()
        except Exception as error:  # the edge of a worker: clients of clouds raise anything
            return f"{type(error).__name__}: {error}"
        return "" if seen == content else "it reads something else"

    unread = []
    for machine in ask_every_machine(read):
        if machine.is_silent:
            say(
                f"The machine {machine.host} of the cluster started no worker in time, so that "
                "it is not known whether it can read the checkpoints of trials. A trial that "
                "gets its place there may wait; see the log raylet.out of that machine, or take it "
                "out of the cluster."
            )
        elif why := machine.error or machine.value:
            unread.append((machine.host, why))
    return unread


def _refused(url: str, why: str) -> SettingsError:
    return SettingsError(
        f"compute.storage_path '{url}' cannot be used: {why}.",
        fix="Give a folder, or a URL that pyarrow or an installed fsspec package takes: "
        "s3://bucket/prefix, gs://bucket/prefix, abfs://container@account/prefix.",
    )


def _mark_name() -> str:
    return f"{own_prefix('storage')}{secrets.token_hex(4)}"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
