"""How much each of many origins counts: of ten and more, no one has more than a tenth (ROLL-2).

Users are whatever a client says; networks are not. So what invented users of one network did
counts as what one network did.
"""

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray


def limited_parts(origins: Sequence[Hashable], *, most: float) -> NDArray[np.float64]:
    """Return how much each entry counts (N,), 1 for one that is not limited.

    Entries count alike, save those of an origin that would have more than ``most`` of all. With
    fewer than ``1 / most`` origins nothing is limited: one gateway may ask for everybody, and a
    limit would make the few others count as much.

    Args:
        origins: Where each of N entries is from, N at least 1.
        most: Largest part of one origin [rate].
    """
    counts = Counter(origins)
    level = _level(sorted(counts.values(), reverse=True), most=most)
    return np.array([min(1.0, level / counts[origin]) for origin in origins])


def _level(falling: Sequence[int], *, most: float) -> float:
    """Return how many entries of one origin make the part ``most`` of all that is left."""
    if len(falling) * most < 1:
        return float(falling[0])
    rest = sum(falling)
    for above, count in enumerate(falling):
        left = 1 - above * most
        level = most * rest / left if left > 0 else 0.0
        if count <= level:
            return level
        rest -= count
    return float(falling[-1])
