"""Report on the quality of a workload's expectations: false alarm and missed alarm rates."""

import math
from statistics import NormalDist
from typing import Literal, Self

from pydantic import Field

from sluice.base.settings import Record, Settings

TableName = Literal["raw_data", "features"]


class AlarmSettings(Settings):
    """Windows to evaluate, and maximum number of windows into which each corruption is inserted."""

    window_rows: int = Field(250, ge=10, le=1_000_000, description="Window length [rows].")
    step_rows: int = Field(
        50, ge=1, description="Distance between the first rows of consecutive windows [rows]."
    )
    max_windows: int = Field(
        200,
        ge=2,
        le=10_000,
        description="Maximum number of windows. If more are available, evenly spaced windows are "
        "used.",
    )
    plantings: int = Field(
        5,
        ge=1,
        le=1_000,
        description="Maximum number of windows into which each corruption is inserted.",
    )
    confidence: float = Field(
        0.95, gt=0.5, lt=1, description="Confidence level of the Wilson intervals."
    )
    seed: int = Field(0, ge=0, description="Seed that selects the corrupted rows.")


class AlarmRate(Record):
    """Share of windows with an outcome, and the Wilson score interval of this share."""

    count: int = Field(description="Number of windows with the outcome.")
    of: int = Field(description="Number of all windows that were evaluated.")
    low: float
    high: float

    @classmethod
    def of_windows(
        cls, count: int, total: int, *, confidence: float, num_independent: int | None = None
    ) -> Self:
        """Return the rate ``count / total`` with its interval.

        Args:
            count: Number of windows with the outcome.
            total: Number of all windows that were evaluated.
            confidence: Confidence level of the interval.
            num_independent: Effective number of independent windows; None for ``total``.
        """
        num_effective = total if num_independent is None else min(num_independent, total)
        effective_count = count / total * num_effective if total else 0
        low, high = wilson(effective_count, num_effective, confidence=confidence)
        return cls(count=count, of=total, low=low, high=high)

    @property
    def share(self) -> float:
        """The rate ``count / of``; NaN if ``of`` is 0."""
        return self.count / self.of if self.of else math.nan


class ExpectationRates(Record):
    """False alarms and detections of one expectation."""

    table: TableName
    sentence: str
    false_alarms: AlarmRate | None = Field(
        description="Share of good windows in which the expectation does not pass. None for a row "
        "count and for an expectation of Great Expectations, which are not evaluated on windows."
    )
    caught: int = Field(description="Number of corrupted windows that the expectation detected.")


class CorruptionRates(Record):
    """Detection of one corruption in one table."""

    planted_in: TableName
    corruption: str
    planted: int = Field(
        description="Number of windows that the corruption changed, counted once for each "
        "corrupted column or pair of columns."
    )
    caught: int = Field(
        description="Number of these windows that at least one expectation detected."
    )
    refused: int = Field(
        description="Number of rejected windows: no expectation detected the corruption, but a "
        "schema or the feature code rejected the window."
    )
    missed: AlarmRate = Field(
        description="Share of these windows that no expectation, schema or feature code detected. "
        "The interval treats the columns of a window as independent."
    )
    caught_by: dict[str, int] = Field(
        description="Number of detected windows for each expectation, schema or code that detected "
        "the corruption, in descending order."
    )
    missed_in: dict[str, int] = Field(
        description="Number of missed windows for each corrupted column or pair of columns."
    )


class AlarmReport(Record):
    """Alarm rates of the expectations of one workload."""

    workload: str
    settings: AlarmSettings
    num_rows: int
    num_windows: int
    disjoint_windows: int = Field(
        description="Number of windows that fit without overlap. The intervals of the false "
        "alarm rates use this number."
    )
    refused_windows: int = Field(
        description="Number of good windows that a schema or the feature code rejected."
    )
    expectations: tuple[ExpectationRates, ...]
    corruptions: tuple[CorruptionRates, ...]


def wilson(count: float, total: float, *, confidence: float) -> tuple[float, float]:
    """Return the Wilson score interval of the rate ``count / total``; (0, 1) if ``total`` is 0.

    Source:
        Wilson (1927), "Probable inference", Journal of the American Statistical Association 22.
    """
    if not total > 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share = count / total
    middle = share + z * z / (2 * total)
    half_width = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return max(0.0, (middle - half_width) / scale), min(1.0, (middle + half_width) / scale)
