"""Scores of a detector on planted faults and on healthy counterparts.

A planted-fault benchmark runs programs or set-ups with one fault each, and healthy ones. A fault is
caught if the detector reports it, first if it is the first thing that the detector reports. Every
report about a healthy run is a false alarm: an error or a warning.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from sluice.base.settings import Record
from sluice.bench.planted.rate import Rate

T = TypeVar("T")


class FaultyRun(Protocol):
    """Result of a detector on one planted fault."""

    @property
    def is_caught(self) -> bool:
        """Whether the fault was reported, with all that the benchmark expects of the report."""

    @property
    def is_first(self) -> bool:
        """Whether the expected report came first."""


class HealthyRun(Protocol):
    """Result of a detector on a run without a fault."""

    @property
    def has_error(self) -> bool:
        """Whether the detector reported an error."""

    @property
    def has_warning(self) -> bool:
        """Whether the detector reported a warning or a finding to confirm."""


class PlantedScore(Record):
    """Rates of a detector; None where nothing ran."""

    caught: Rate | None
    first: Rate | None
    false_errors: Rate | None
    false_warnings: Rate | None

    @property
    def is_perfect(self) -> bool:
        """Whether every fault was caught and no healthy run has an error."""
        return (self.caught is None or self.caught.count == self.caught.total) and (
            self.false_errors is None or not self.false_errors.count
        )


def score_planted(faulty: Iterable[FaultyRun], healthy: Iterable[HealthyRun]) -> PlantedScore:
    """Return the rates over all runs."""
    faults, others = tuple(faulty), tuple(healthy)
    return PlantedScore(
        caught=rate_of(faults, lambda run: run.is_caught),
        first=rate_of(faults, lambda run: run.is_first),
        false_errors=rate_of(others, lambda run: run.has_error),
        false_warnings=rate_of(others, lambda run: run.has_warning),
    )


def rate_of(runs: Sequence[T], holds: Callable[[T], bool]) -> Rate | None:
    """Return the share of runs for which a condition holds; None without runs."""
    return Rate(count=sum(map(holds, runs)), total=len(runs)) if runs else None
