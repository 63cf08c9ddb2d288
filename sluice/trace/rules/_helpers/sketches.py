"""Compares bottom-k sketches of integer sets between processes."""

from collections.abc import Sequence

from sluice.trace.records.batches import SketchRecord

_NUM_HASHES = 2**64
"""Number of possible hashes. They range from -(2**63) to 2**63 - 1."""


def common_threshold(sketches: Sequence[SketchRecord]) -> int:
    """Return the largest hash up to which all sketches are complete."""
    return min((s.values[-1] for s in sketches if not s.is_complete), default=_NUM_HASHES // 2 - 1)


def values_up_to(max_hash: int, sketch: SketchRecord) -> frozenset[int]:
    """Return the hashes of a sketch that are at most ``max_hash``."""
    return frozenset(value for value in sketch.values if value <= max_hash)


def hash_share_up_to(max_hash: int) -> float:
    """Return the share of all integers whose hash is at most ``max_hash``."""
    return (max_hash + _NUM_HASHES // 2 + 1) / _NUM_HASHES
