"""How long something takes beside a known piece of work: a limit in seconds fails on a slow day."""

import time
from collections.abc import Callable


def times_as_long(work: Callable[[], object], beside: Callable[[], object]) -> float:
    """Return the processor time of a piece of work over that of another, the least of three each.

    Both run in turns, so that they meet the same moods of the machine.
    """
    spent: dict[Callable[[], object], list[float]] = {work: [], beside: []}
    for _ in range(3):
        for run, seconds in spent.items():
            began = time.process_time()
            run()
            seconds.append(time.process_time() - began)
    return min(spent[work]) / min(spent[beside])
