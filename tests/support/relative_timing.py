"""Measures durations relative to a reference, because absolute durations depend on the machine."""

import time
from collections.abc import Callable


def relative_duration(work: Callable[[], object], reference: Callable[[], object]) -> float:
    """Return the CPU time of ``work`` divided by the CPU time of ``reference``.

    The shortest of three runs counts. The two run alternately, so that the load of the machine
    affects both.
    """
    durations_s: dict[Callable[[], object], list[float]] = {work: [], reference: []}
    for _ in range(3):
        for run, durations in durations_s.items():
            start = time.process_time()
            run()
            durations.append(time.process_time() - start)
    return min(durations_s[work]) / min(durations_s[reference])
