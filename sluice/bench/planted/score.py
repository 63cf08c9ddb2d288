"""Scores of a detector on planted faults and on healthy counterparts.

A planted-fault benchmark runs programs or set-ups with one fault each, and healthy ones. A fault
counts as caught if the detector reports it, and as first if this is the detector's first report.
Every report about a healthy run is a false alarm: a false error or a false warning.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from pydantic import Field

from sluice.base.settings import Record
from sluice.bench.planted.rate import Rate

T = TypeVar("T")


class FaultyRun(Protocol):
    """Result of a detector on a run with one planted fault."""

    @property
    def is_caught(self) -> bool:
        """Whether the fault was reported, and the report is as the benchmark expects."""

    @property
    def is_first(self) -> bool:
        """Whether the report of the fault was the detector's first report."""


class HealthyRun(Protocol):
    """Result of a detector on a run without a fault."""

    @property
    def has_error(self) -> bool:
        """Whether the detector reported an error."""

    @property
    def has_warning(self) -> bool:
        """Whether the detector reported a warning or a finding to confirm."""


class PlantedScore(Record):
    """Rates of a detector. A rate is None if there were no runs of its kind."""

    caught: Rate | None = Field(
        description="Share of the faulty runs in which the fault was caught."
    )
    first: Rate | None = Field(
        description="Share of the faulty runs in which the fault was reported first."
    )
    false_errors: Rate | None = Field(description="Share of the healthy runs with an error.")
    false_warnings: Rate | None = Field(description="Share of the healthy runs with a warning.")

    @property
    def is_perfect(self) -> bool:
        """Whether every fault was caught and no healthy run has an error; warnings do not count."""
        return (self.caught is None or self.caught.count == self.caught.total) and (
            self.false_errors is None or not self.false_errors.count
        )


def score_planted(faulty: Iterable[FaultyRun], healthy: Iterable[HealthyRun]) -> PlantedScore:
    """Return the rates over all runs."""
    faulty_runs, healthy_runs = tuple(faulty), tuple(healthy)
    return PlantedScore(
        caught=rate_of(faulty_runs, lambda run: run.is_caught),
        first=rate_of(faulty_runs, lambda run: run.is_first),
        false_errors=rate_of(healthy_runs, lambda run: run.has_error),
        false_warnings=rate_of(healthy_runs, lambda run: run.has_warning),
    )


def rate_of(runs: Sequence[T], condition: Callable[[T], bool]) -> Rate | None:
    """Return the share of runs that fulfil a condition; None without runs."""
    return Rate(count=sum(map(condition, runs)), total=len(runs)) if runs else None
