"""The processor cores there are."""

import os


def count_cores() -> int:
    """Return how many processor cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))  # a container may grant fewer than the machine has
    return os.cpu_count() or 1
