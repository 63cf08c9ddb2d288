"""Measures durations relative to a reference, because absolute limits fail on a busy machine."""

import time
from collections.abc import Callable


def relative_duration(work: Callable[[], object], reference: Callable[[], object]) -> float:
    """Return the processor time of ``work`` divided by that of ``reference``, best of three each.

    Both run alternately, so that both are affected by the same load of the machine.
    """
    seconds: dict[Callable[[], object], list[float]] = {work: [], reference: []}
    for _ in range(3):
        for run, durations in seconds.items():
            start = time.process_time()
            run()
            durations.append(time.process_time() - start)
    return min(seconds[work]) / min(seconds[reference])
