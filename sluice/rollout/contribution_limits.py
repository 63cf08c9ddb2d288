"""Limits the contribution of one origin to a statistic over many entries.

A client can choose any user name, but not its subnet. So all entries of one subnet, under any user
names, count as entries of one origin.
"""

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray


def contribution_weights(origins: Sequence[Hashable], *, max_share: float) -> NDArray[np.float64]:
    """Return the weight of each entry (N,): 1, or less for entries of an origin above the limit.

    Entries have equal weights, except if their origin would have more than ``max_share`` of the
    total. If there are fewer than ``1 / max_share`` origins, nothing is limited: one gateway
    may send the requests of all users, and with a limit the few other clients would have as much
    influence as the gateway.

    Args:
        origins: Origin of each of N entries, N at least 1.
        max_share: Maximum share of one origin in the total weight.
    """
    counts = Counter(origins)
    max_weight = _max_weight(sorted(counts.values(), reverse=True), max_share=max_share)
    return np.array([min(1.0, max_weight / counts[origin]) for origin in origins])


def _max_weight(counts: Sequence[int], *, max_share: float) -> float:
    """Return the maximum weight of one origin: ``max_share`` of the total weight after limiting.

    Args:
        counts: Number of entries of each origin, largest first.
        max_share: Maximum share of one origin in the total weight.
    """
    if len(counts) * max_share < 1:
        return float(counts[0])
    num_unlimited_entries = sum(counts)
    for num_limited_origins, count in enumerate(counts):
        unlimited_share = 1 - num_limited_origins * max_share
        limited_weight = max_share * num_unlimited_entries
        max_weight = limited_weight / unlimited_share if unlimited_share > 0 else 0.0
        if count <= max_weight:
            return max_weight
        num_unlimited_entries -= count
    return float(counts[-1])  # reached only through rounding errors
