"""Set-up of every test run: one thread per process, temporary folders in memory, test order."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# This must be set before torch, numpy and numba are imported. Processes that tests and xdist start
# inherit it. With two threads per process, the small layers of the tests take 1.5 times as long,
# mostly because threads wait for each other.
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# Without a bytecode cache, each program that a test starts compiles all of Sluice again, which is a
# quarter of its startup time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

MEMORY_FOLDER = Path("/dev/shm")
MIN_FREE_BYTES = 2 * 2**30  # a test run uses about 2 % of it


def can_hold_temporary_folders(folder: Path) -> bool:
    """Whether a folder is writable, has enough free space, and may contain executables."""
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        return False
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize >= MIN_FREE_BYTES and not disk.f_flag & os.ST_NOEXEC


# On a disk, databases would flush some hundred times per run of a pipeline, and wait up to five
# times as long as they compute. The folders of passed tests are deleted (pyproject.toml).
if can_hold_temporary_folders(MEMORY_FOLDER):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY_FOLDER))

collect_ignore = ["support/traced/script.py"]
"""A program that trains when it is imported, as scripts of users do."""


def pytest_configure(config: pytest.Config) -> None:
    """Hide the GPU unless GPU tests are selected, so that device 'auto' is the CPU."""
    if "gpu" not in config.option.markexpr.replace("not gpu", ""):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Disable the garbage collector during collection, and make it ignore all objects so far.

    The tests and their imports are more than a million objects, none of which is garbage. Without
    ``gc.freeze``, some hundred tests would each lose a second in a full garbage collection.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def pytest_collection_modifyitems(items):
    """Skip GPU tests without a GPU, and put files with slow tests first.

    With several xdist workers, a long file at the end would keep one busy while others are idle.
    """
    for item in items:
        if item.get_closest_marker("gpu") and not has_gpu():
            item.add_marker(pytest.mark.skip(reason="torch finds no CUDA device"))
    slow = {
        item.path
        for item in items
        if item.get_closest_marker("slow") and not item.get_closest_marker("exhaustive")
    }
    items.sort(key=lambda item: item.path not in slow)


def pytest_terminal_summary(terminalreporter):
    """Print each ``record_property("measurement", text)`` of a test that passed."""
    measurements = [
        value
        for report in terminalreporter.stats.get("passed", [])
        for name, value in report.user_properties
        if name == "measurement"
    ]
    if measurements:
        terminalreporter.section("measurements")
        for line in measurements:
            terminalreporter.line(line)
