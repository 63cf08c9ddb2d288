"""How much memory there is, and how much a process and its children use."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

_CGROUP = Path("/sys/fs/cgroup")


def available_bytes(cgroup: Path = _CGROUP) -> int:
    """Return the memory that can still be used [bytes], within the container's limit if any.

    Args:
        cgroup: Folder of the control group's files; a missing one sets no limit.
    """
    import psutil

    free = int(psutil.virtual_memory().available)
    limit = _number(cgroup / "memory.max")
    used = _number(cgroup / "memory.current")
    if limit is None or used is None:
        return free
    return min(free, max(0, limit - used + _reclaimable(cgroup / "memory.stat")))


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process and its children [bytes]; 0 when it is gone.

    Memory that several of them share is counted for each: the sum is an upper bound, and quick.
    """
    return _sum(pid, lambda process: int(process.memory_info().rss))


def proportional_bytes(pid: int) -> int:
    """Return the same with shared memory counted once [bytes], where the system tells (Linux).

    Cost:
        The kernel walks all pages: some 10 ms for each GiB.
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
    # Cached files count as used, and the system drops them when memory is asked for.
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
