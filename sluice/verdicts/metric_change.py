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
    """One metric that is worse than that of the reference, averaged over seeds and folds."""

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
        candidate, reference = _format_different(self.candidate, self.reference)
        interval = f", 95 % interval {self.low:.2g} to {self.high:.2g}" if self.has_interval else ""
        return f"{self.metric} {candidate} against {reference} ({difference:+.2g}{interval})"

    @property
    def has_interval(self) -> bool:
        """Whether both limits of the interval are known."""
        return math.isfinite(self.low) and math.isfinite(self.high)


def describe_deteriorations(worse_metrics: tuple[MetricDeterioration, ...]) -> str:
    """Describe the worse metrics, and the condition of an interval if one is unknown.

    Return "" if no metric is worse.
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


def _format_different(value: float, other: float) -> tuple[str, str]:
    """Return both values with three significant digits, or as many as distinguish them."""
    for digits in range(_MIN_DIGITS, _MAX_DIGITS + 1):
        texts = f"{value:.{digits}g}", f"{other:.{digits}g}"
        if texts[0] != texts[1]:
            return texts
    return f"{value:.{_MIN_DIGITS}g}", f"{other:.{_MIN_DIGITS}g}"
