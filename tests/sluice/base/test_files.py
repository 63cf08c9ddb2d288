"""Atomic writes, and their behaviour after errors of the file system."""

import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sluice.base.errors import StorageError
from sluice.base.files import storage_error, stream_atomic, write_atomic


def test_write_atomic_creates_and_replaces_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    for content in (b"one", b"two", b""):
        write_atomic(path, content)
        assert path.read_bytes() == content
    assert [p.name for p in path.parent.iterdir()] == ["b"]


@pytest.mark.parametrize(
    "raised_error", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()]
)
def test_interrupted_write_keeps_the_old_file_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised_error: BaseException
) -> None:
    """The write ends by a full disk or by Ctrl-C."""
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def fsync(_: int) -> None:
        raise raised_error

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises((StorageError, KeyboardInterrupt)):
        write_atomic(path, b"new")

    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_write_beyond_the_file_size_limit_raises_storage_error(tmp_path: Path) -> None:
    """RLIMIT_FSIZE makes the operating system reject writes, as on a full disk."""

    def limit_file_size() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    script = (
        "import sys, pathlib; from sluice.base.files import write_atomic\n"
        "write_atomic(pathlib.Path(sys.argv[1]) / 'file', bytes(5000))"
    )
    environ = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=Path(__file__).parents[3],
        env=environ,
        preexec_fn=limit_file_size,
        capture_output=True,
        text=True,
        check=False,
    )

    assert "StorageError: No room left to write" in process.stderr
    assert list(tmp_path.iterdir()) == []


def test_write_below_a_file_raises_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StorageError, match=r"Cannot write .*file/x"):
        write_atomic(tmp_path / "file" / "x", b"")


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOSPC, "No room left"),
        (errno.EDQUOT, "No room left"),
        (errno.EFBIG, "No room left"),
        (errno.EACCES, "Make the folder writable"),
        (errno.EROFS, "Make the folder writable"),
        (errno.EIO, "Check the path and the disk"),
    ],
)
def test_storage_error_has_path_and_fix(number: int, expected: str) -> None:
    error: Any = storage_error(Path("some/file"), OSError(number, os.strerror(number)))

    assert "some/file" in str(error)
    assert expected in str(error)


def test_file_permissions_follow_the_umask(tmp_path: Path) -> None:
    write_atomic(tmp_path / "atomic", b"x")
    (tmp_path / "usual").write_bytes(b"x")

    assert (tmp_path / "atomic").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_streamed_file_appears_only_when_complete(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    with stream_atomic(path) as file:
        file.write(b"....two")
        file.seek(0)
        file.write(b"one ")
        assert not path.exists()

    assert path.read_bytes() == b"one two"
    assert [p.name for p in path.parent.iterdir()] == ["b"]


@pytest.mark.parametrize(
    ("raised_error", "expected_error"),
    [
        (OSError(errno.ENOSPC, "No space left"), StorageError),
        (ValueError("bad row"), ValueError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_failed_stream_keeps_the_old_file(
    tmp_path: Path, raised_error: BaseException, expected_error: type[BaseException]
) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def write() -> None:
        with stream_atomic(path) as file:
            file.write(b"new")
            raise raised_error

    with pytest.raises(expected_error):
        write()

    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
