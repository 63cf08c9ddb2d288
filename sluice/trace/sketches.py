"""Samples of sets of whole numbers, compared between processes."""

from collections.abc import Sequence

from sluice.trace.evidence.batches import SketchFact

_WORLD = 2**64


def limit_of(sketches: Sequence[SketchFact]) -> int:
    """Return the largest mixed number up to which all sketches are whole."""
    return min((s.values[-1] for s in sketches if not s.is_whole), default=_WORLD // 2 - 1)


def up_to(limit: int, sketch: SketchFact) -> frozenset[int]:
    """Return the values of a sketch up to a limit."""
    return frozenset(value for value in sketch.values if value <= limit)


def share_below(limit: int) -> float:
    """Return the share of all numbers that are mixed to one up to a limit."""
    return (limit + _WORLD // 2 + 1) / _WORLD
