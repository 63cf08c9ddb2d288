"""Limits the contribution of one origin to a statistic over many entries.

User names are chosen by the client, networks are not. So all entries of one network count as the
contribution of one origin, whatever users they name.
"""

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray


def capped_contributions(origins: Sequence[Hashable], *, max_share: float) -> NDArray[np.float64]:
    """Return the contribution of each entry (N,): 1, or less for an origin above the limit.

    Entries contribute equally, except those of an origin that would have more than ``max_share``
    of the total. With fewer than ``1 / max_share`` origins nothing is limited: one gateway may
    send the requests of all users, and a limit would give the few other clients the same
    influence.

    Args:
        origins: Origin of each of N entries, N at least 1.
        max_share: Largest share of one origin [rate].
    """
    counts = Counter(origins)
    cap = _cap(sorted(counts.values(), reverse=True), max_share=max_share)
    return np.array([min(1.0, cap / counts[origin]) for origin in origins])


def _cap(counts: Sequence[int], *, max_share: float) -> float:
    """Return the entries of one origin that make up ``max_share`` of the capped total."""
    if len(counts) * max_share < 1:
        return float(counts[0])
    remaining = sum(counts)
    for above, count in enumerate(counts):
        left = 1 - above * max_share
        level = max_share * remaining / left if left > 0 else 0.0
        if count <= level:
            return level
        remaining -= count
    return float(counts[-1])
