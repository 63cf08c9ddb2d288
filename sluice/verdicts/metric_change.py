"""Deterioration of a metric, which is reported with a verdict."""

import math

from pydantic import Field

from sluice.base.settings import Record

MIN_FOLDS = 3
"""Minimum number of folds for an estimate of the variance of a metric over folds."""

_MIN_DIGITS = 3
"""Minimum number of significant digits of the two values of a metric. More digits are shown if they
are needed to distinguish the values."""

_MAX_DIGITS = 17
"""Number of significant digits that distinguish any two floats."""


class MetricDeterioration(Record):
    """One metric that is worse for the candidate than for the reference."""

    metric: str
    candidate: float = Field(
        description="Metric of the candidate: mean over seeds and over folds, where a fold is "
        "weighted by its number of test rows [metric units]."
    )
    reference: float = Field(
        description="Metric of the reference, averaged in the same way [metric units]."
    )
    low: float = Field(
        description="Lower limit of the 95 % interval of candidate minus reference; NaN if it is "
        "unknown."
    )
    high: float = Field(
        description="Upper limit of the 95 % interval of candidate minus reference; NaN if it is "
        "unknown."
    )

    def __str__(self) -> str:
        difference = self.candidate - self.reference
        candidate, reference = _format_pair(self.candidate, self.reference)
        interval = f", 95 % interval {self.low:.2g} to {self.high:.2g}" if self.has_interval else ""
        return f"{self.metric} {candidate} against {reference} ({difference:+.2g}{interval})"

    @property
    def has_interval(self) -> bool:
        """Whether both limits of the interval are known."""
        return math.isfinite(self.low) and math.isfinite(self.high)


def describe_deteriorations(worse_metrics: tuple[MetricDeterioration, ...]) -> str:
    """Return a sentence with the worse metrics; "" if no metric is worse.

    If an interval is unknown, a second sentence states what an interval requires.
    """
    if not worse_metrics:
        return ""
    sentence = f"Worse than the reference: {'; '.join(map(str, worse_metrics))}."
    if all(metric.has_interval for metric in worse_metrics):
        return sentence
    return (
        f"{sentence} A confidence interval of a difference requires finite values in at least "
        f"{MIN_FOLDS} folds."
    )


def _format_pair(first: float, second: float) -> tuple[str, str]:
    """Return both values with three significant digits, or with more to distinguish the values."""
    for digits in range(_MIN_DIGITS, _MAX_DIGITS + 1):
        first_text, second_text = f"{first:.{digits}g}", f"{second:.{digits}g}"
        if first_text != second_text:
            return first_text, second_text
    return f"{first:.{_MIN_DIGITS}g}", f"{second:.{_MIN_DIGITS}g}"
