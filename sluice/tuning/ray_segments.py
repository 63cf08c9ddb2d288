"""Segments of a search as jobs of a Ray pool."""

import contextlib
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sluice.cluster.jobs import Done, Lost, Pool, Tell
from sluice.cluster.ray_pool import open_ray_pool
from sluice.cluster.settings import ComputeSettings
from sluice.training.device import release_memory
from sluice.tuning.accidents import stopped_by
from sluice.tuning.driver import SegmentObjective, answer
from sluice.tuning.records import Outcome, Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentJob:
    """One segment, ready to be run in any process."""

    objective: SegmentObjective
    segment: Segment
    folder: Path
    """That of the search."""

    def __call__(self, tell: Tell) -> Outcome:  # noqa: ARG002 -- a segment tells nothing
        """Run it."""
        try:
            return answer(self.objective, self.segment, self.folder)
        finally:
            release_memory()


class RaySegments:
    """Runs segments on Ray; one whose worker was lost goes on from its last checkpoint."""

    def __init__(self, pool: Pool, objective: SegmentObjective, folder: Path) -> None:
        self._pool, self._objective, self._folder = pool, objective, folder
        self._under_way: dict[Hashable, Segment] = {}

    def free(self) -> bool:
        """Return whether it takes another segment now."""
        return self._pool.free()

    def give(self, segment: Segment) -> None:
        """Start a segment."""
        self._under_way[segment.key] = segment
        job = SegmentJob(objective=self._objective, segment=segment, folder=self._folder)
        self._pool.give(segment.key, job)

    def next(self) -> Outcome | None:
        """Wait for an outcome, or until the number of free places changed.

        Raises:
            TrainingFailed: No worker starts, or one died too often at the same trial.
            SluiceError: An accident of a worker, as ``answer`` raised it.
        """
        arrived = self._pool.next()
        if arrived is None or (isinstance(arrived, Lost) and arrived.again):
            return None
        segment = self._under_way.pop(arrived.key)
        if isinstance(arrived, Lost):
            times = f"{arrived.times} times" if arrived.times > 1 else "once"
            what = f"its worker died {times}; its {arrived.what}"
            raise stopped_by(segment.params, what, cause=arrived.cause)
        assert isinstance(arrived, Done)  # a segment tells nothing
        outcome = arrived.result
        assert isinstance(outcome, Outcome)
        return outcome


@contextlib.contextmanager
def open_ray_segments(
    objective: SegmentObjective, folder: Path, compute: ComputeSettings, *, most: int
) -> Iterator[RaySegments]:
    """Start or join Ray for the segments of one search; see ``open_ray_pool``."""
    folder = folder.absolute()
    with open_ray_pool(
        compute, most=most, imports=("sluice.tuning.ray_segments",), folders=[folder]
    ) as pool:
        yield RaySegments(pool, objective, folder)
