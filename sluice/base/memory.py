"""Measures available memory, and the memory that a process and its children use."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

_CGROUP = Path("/sys/fs/cgroup")
"""Folder where Linux shows the memory limit and usage of a container (control group, version 2)."""


def available_bytes(cgroup: Path = _CGROUP) -> int:
    """Return the available memory [bytes]; the memory limit of a container reduces the result.

    Args:
        cgroup: Folder with the files of the control group. Without this folder, no limit applies.
    """
    import psutil

    free_bytes = int(psutil.virtual_memory().available)
    limit_bytes = _read_number(cgroup / "memory.max")
    used_bytes = _read_number(cgroup / "memory.current")
    if limit_bytes is None or used_bytes is None:
        return free_bytes
    return min(
        free_bytes, max(0, limit_bytes - used_bytes + _reclaimable_bytes(cgroup / "memory.stat"))
    )


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process and its children [bytes]; 0 if it has ended.

    Memory that several of these processes share is counted once for each process, so the sum is an
    upper bound. The sum is fast to compute.
    """
    return _sum_over_process_tree(pid, lambda process: int(process.memory_info().rss))


def proportional_bytes(pid: int) -> int:
    """Return the memory of a process and its children [bytes].

    A page that several processes share counts in equal parts for these processes. Only Linux
    reports this value; on other systems the result is the same as for ``resident_bytes``.

    Cost:
        About 10 ms per GiB, because the kernel visits all memory pages.
    """

    def proportional_set_size(process: "psutil.Process") -> int:
        memory = process.memory_full_info()
        return int(getattr(memory, "pss", memory.rss))

    return _sum_over_process_tree(pid, proportional_set_size)


def _sum_over_process_tree(pid: int, measure: "Callable[[psutil.Process], int]") -> int:
    """Return the sum of a measure over a process and all its descendants."""
    import psutil

    try:
        parent = psutil.Process(pid)
        processes = [parent, *parent.children(recursive=True)]
    except psutil.Error:
        return 0
    total = 0
    for process in processes:
        with suppress(psutil.Error):  # the process has ended
            total += measure(process)
    return total


def _reclaimable_bytes(stat_file: Path) -> int:
    """Return the size of the page cache [bytes], which counts as used but is freed on demand."""
    try:
        lines = stat_file.read_text().splitlines()
    except OSError:
        return 0
    text_by_name = dict(line.split(maxsplit=1) for line in lines if " " in line)
    return int(text_by_name.get("inactive_file", 0))


def _read_number(path: Path) -> int | None:
    """Return the number in a file; None if the file is missing or contains 'max' (no limit)."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
