"""What holds for every test: one thread a process, folders in memory, what was counted is told."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# Before torch, numpy and numba are loaded, and for every process that a test or xdist starts: with
# two threads each the small layers of the tests take half as long again, most of it spent waiting.
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# A program that a test starts compiles all of Sluice again where nobody may keep what it compiled:
# a quarter of the time that it needs to begin.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

MEMORY = Path("/dev/shm")
ROOM_BYTES = 2 * 2**30  # of which a run uses a fiftieth


def can_hold_folders(place: Path) -> bool:
    """Whether temporary folders may be there: with room, and programs in them can be run."""
    if not (place.is_dir() and os.access(place, os.W_OK)):
        return False
    there = os.statvfs(place)
    return there.f_bavail * there.f_frsize >= ROOM_BYTES and not there.f_flag & os.ST_NOEXEC


# Databases write through to the disk some hundred times a run of a pipeline, and wait for it: up to
# five times as long as they work. What a test leaves when it passes goes with it (pyproject.toml).
if can_hold_folders(MEMORY):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

collect_ignore = ["support/traced/script.py"]
"""Programs that run when they are imported, as those of users do."""


def pytest_configure(config: pytest.Config) -> None:
    """Hide the GPU from tests that do not ask for it: 'auto' and the bits are those of the CPU."""
    if "gpu" not in config.option.markexpr.replace("not gpu", ""):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect tests without the garbage collector, and let it ignore them afterwards.

    All tests and what they import are more than a million objects, none of which is garbage. Each
    full collection would search them for a second, in some hundred tests.
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
    """Put the files with slow tests first: their order is that of a run on several workers.

    A long file at the end would keep one worker busy while the others are idle.
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
    """Print each ``record_property("told", text)`` of a test that passed."""
    told = [
        value
        for report in terminalreporter.stats.get("passed", [])
        for name, value in report.user_properties
        if name == "told"
    ]
    if told:
        terminalreporter.section("counted")
        for line in told:
            terminalreporter.line(line)
