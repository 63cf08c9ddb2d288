"""What the expectations of a workload are worth: rates of false and of missed alarms (DATA-1)."""

import math
from statistics import NormalDist
from typing import Literal, Self

from pydantic import Field

from sluice.base.settings import Record, Settings

Table = Literal["raw_data", "features"]


class AlarmSettings(Settings):
    """Which windows are judged, and how often each corruption is planted."""

    window_rows: int = Field(250, ge=10, le=1_000_000, description="Rows of a window [rows].")
    step_rows: int = Field(50, ge=1, description="From one window's start to the next [rows].")
    max_windows: int = Field(200, ge=2, le=10_000, description="More are thinned out evenly.")
    plantings: int = Field(
        5, ge=1, le=1_000, description="Windows each corruption of a column is planted in."
    )
    confidence: float = Field(0.95, gt=0.5, lt=1, description="Of the Wilson intervals.")
    seed: int = Field(0, ge=0, description="Chooses the rows that are corrupted.")


class Rate(Record):
    """A share with its Wilson score interval."""

    count: int
    of: int
    low: float
    high: float

    @classmethod
    def of_windows(
        cls, count: int, of: int, *, confidence: float, effective: int | None = None
    ) -> Self:
        """Return the share of ``count`` in ``of``.

        Args:
            count: Windows with the outcome.
            of: Windows looked at.
            confidence: Of the interval.
            effective: How many independent windows those are worth; all when not given.
        """
        worth = of if effective is None else min(effective, of)
        low, high = wilson(count / of * worth if of else 0, worth, confidence=confidence)
        return cls(count=count, of=of, low=low, high=high)

    @property
    def share(self) -> float:
        """The count over the whole; NaN of nothing."""
        return self.count / self.of if self.of else math.nan


class ExpectationRates(Record):
    """One expectation: how often it cried wolf, and how much it caught."""

    table: Table
    sentence: str
    false_alarms: Rate | None = Field(description="None for a row count: no window can answer.")
    caught: int = Field(description="Corrupted windows it noticed, planted in raw or features.")


class CorruptionRates(Record):
    """One corruption of one table: who noticed."""

    planted_in: Table
    corruption: str
    planted: int = Field(description="Windows it changed; those it left as they were are left out.")
    caught: int = Field(description="Noticed by at least one expectation.")
    refused: int = Field(description="By no expectation, but by a schema or the feature code.")
    missed: Rate = Field(
        description="Noticed by nothing on the way; columns of one window count as independent."
    )
    caught_by: dict[str, int] = Field(description="Windows by who noticed, most first.")
    missed_in: dict[str, int] = Field(description="Missed windows by what was corrupted.")


class AlarmReport(Record):
    """What the expectations of one workload are worth."""

    workload: str
    settings: AlarmSettings
    num_rows: int
    num_windows: int
    disjoint_windows: int = Field(description="How many fit side by side; intervals use these.")
    refused_windows: int = Field(description="Good windows that schema or feature code refused.")
    expectations: tuple[ExpectationRates, ...]
    corruptions: tuple[CorruptionRates, ...]


def wilson(count: float, of: float, *, confidence: float) -> tuple[float, float]:
    """Return the Wilson score interval of a share; (0, 1) of nothing.

    Source:
        Wilson (1927), "Probable inference", Journal of the American Statistical Association 22.
    """
    if not of > 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share = count / of
    middle = share + z * z / (2 * of)
    reach = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    scale = 1 + z * z / of
    return max(0.0, (middle - reach) / scale), min(1.0, (middle + reach) / scale)
