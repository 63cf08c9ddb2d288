"""Measures available memory, and the memory that a process and its children use."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

_CGROUP = Path("/sys/fs/cgroup")


def available_bytes(cgroup: Path = _CGROUP) -> int:
    """Return the available memory [bytes], within the container's limit if there is one.

    Args:
        cgroup: Folder with the files of the control group; if it is missing, no limit applies.
    """
    import psutil

    free = int(psutil.virtual_memory().available)
    limit = _number(cgroup / "memory.max")
    used = _number(cgroup / "memory.current")
    if limit is None or used is None:
        return free
    return min(free, max(0, limit - used + _reclaimable(cgroup / "memory.stat")))


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process and its children [bytes]; 0 if it has ended.

    Shared memory is counted once per process: the sum is an upper bound, and fast to compute.
    """
    return _sum(pid, lambda process: int(process.memory_info().rss))


def proportional_bytes(pid: int) -> int:
    """Return the memory of a process and its children with shared memory counted once [bytes].

    On systems other than Linux, which do not report it, the same as ``resident_bytes``.

    Cost:
        The kernel visits all pages: about 10 ms per GiB.
    """

    def share(process: "psutil.Process") -> int:
        full = process.memory_full_info()
        return int(getattr(full, "pss", full.rss))

    return _sum(pid, share)


def _sum(pid: int, measure: "Callable[[psutil.Process], int]") -> int:
    import psutil

    try:
        parent = psutil.Process(pid)
        family = [parent, *parent.children(recursive=True)]
    except psutil.Error:
        return 0
    total = 0
    for process in family:
        with suppress(psutil.Error):  # it ended meanwhile
            total += measure(process)
    return total


def _reclaimable(stat: Path) -> int:
    # The page cache counts as used memory, and the system frees it on demand.
    try:
        lines = stat.read_text().splitlines()
    except OSError:
        return 0
    values = dict(line.split(maxsplit=1) for line in lines if " " in line)
    return int(values.get("inactive_file", 0))


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
