"""Measures how long a process waited for a CPU because other programs used all CPUs."""

from contextlib import suppress
from pathlib import Path

_NS_PER_S = 1e9


def cpu_wait_s(pid: int | str = "self") -> float:
    """Return how long the main thread of a process was ready to run and had no CPU [s].

    Linux counts this time since the start of the process, and includes waits for the CPU quota of a
    container. It is the second number of ``/proc/PID/schedstat`` (see the kernel's
    ``sched-stats.rst``).

    Args:
        pid: Process id, or "self".

    Returns:
        The time; 0 on other systems, and for a process that does not exist any more.
    """
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / _NS_PER_S
    return 0.0
