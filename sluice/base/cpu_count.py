"""Counts the CPU cores available to this process."""

import os


def count_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))  # a container may have fewer cores than the machine
    return os.cpu_count() or 1
