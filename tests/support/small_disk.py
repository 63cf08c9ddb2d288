"""A small disk, which tests can fill: a tmpfs of some kilobytes."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(folder: Path, *, kib: int) -> Iterator[Path]:
    """Mount a file system of ``kib`` KiB at ``folder``; skip the test if that is not permitted."""
    folder.mkdir(parents=True)
    options = ["-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(folder)]
    if subprocess.run(["mount", *options], capture_output=True).returncode:
        pytest.skip("a small disk can only be mounted as root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Fill the file system; return the file that uses the space."""
    ballast = folder / "ballast"
    with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(512))
    return ballast
