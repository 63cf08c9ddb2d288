"""Sketches of test windows, to estimate the share of a window's rows that another window contains.

Each decision stores a sketch of its rows. The overlap of a new window with the rows of earlier
decisions can therefore be estimated, although the rows are not stored.
"""

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sluice.base.settings import Record

NUM_HASHES = 128
"""Number of hashes that are stored for a window. With this number, the error of the estimated share
is usually below 0.05; it is larger if the other window is many times as large."""

_MAX_HASH = 2**64 - 1
"""Largest possible hash."""


class RowSketch(Record):
    """The smallest hashes of a window's row labels (bottom-k, or one-permutation MinHash).

    Source:
        Cohen & Kaplan (2007), Summarizing data using bottom-k sketches, PODC.
    """

    num_rows: int = Field(ge=1, description="Number of distinct row labels.")
    hashes: tuple[int, ...] = Field(
        description="Smallest hashes in ascending order; all hashes for small windows."
    )

    @classmethod
    def of(cls, label_N: NDArray[np.str_]) -> "RowSketch":
        """Return the sketch of a window.

        Args:
            label_N: Row labels (N,); duplicates count once.

        Cost:
            O(N log N); about 0.3 s for a million rows.
        """
        # Imported here, because it is needed only once per decision.
        from pandas.util import hash_array

        hashes = np.unique(hash_array(np.asarray(label_N, dtype=object), categorize=False))
        return cls(num_rows=hashes.size, hashes=tuple(hashes[:NUM_HASHES].tolist()))

    def share_in(self, other: "RowSketch") -> float:
        """Estimate the share of this window's rows that the other window also contains [rate].

        A sketch is complete up to its largest hash; larger hashes of the window are not stored.
        Therefore, only hashes in the range in which both sketches are complete are compared. If one
        window contains the other, the share of the contained window is estimated as 1. If no hash
        can be compared, the result is 1. This is conservative: the earlier decision then counts as
        an attempt on this window.

        >>> days = np.array([f"2024-01-{day:02d}" for day in range(1, 31)])
        >>> round(RowSketch.of(days[10:]).share_in(RowSketch.of(days)), 2)
        1.0
        >>> round(RowSketch.of(days).share_in(RowSketch.of(days[10:])), 2)
        0.67
        """
        limit = min(self._max_complete_hash, other._max_complete_hash)
        compared_hashes = {row_hash for row_hash in self.hashes if row_hash <= limit}
        if not compared_hashes:
            return 1.0
        return len(compared_hashes & {*other.hashes}) / len(compared_hashes)

    @property
    def _max_complete_hash(self) -> int:
        """Largest hash up to which the sketch is complete."""
        return _MAX_HASH if len(self.hashes) == self.num_rows else self.hashes[-1]
