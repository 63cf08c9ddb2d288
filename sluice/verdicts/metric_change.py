"""A metric that got worse, as a verdict reports it."""

import math

from pydantic import Field

from sluice.base.settings import Record

FEWEST_FOLDS = 3
"""With fewer, nothing is known of how a metric varies over folds."""


class MetricChange(Record):
    """One metric that is worse than the reference's, averaged over seeds and folds."""

    metric: str
    candidate: float = Field(description="Mean over seeds and test rows [metric units].")
    reference: float = Field(description="Mean over seeds and test rows [metric units].")
    low: float = Field(description="Lower end of the 95 % interval of the difference; NaN: unknown")
    high: float = Field(description="Upper end of the 95 % interval of the difference.")

    def __str__(self) -> str:
        difference = self.candidate - self.reference
        interval = (
            f"95 % interval {self.low:.2g} to {self.high:.2g}"
            if math.isfinite(self.low) and math.isfinite(self.high)
            else f"no interval: it needs {FEWEST_FOLDS} folds and finite values"
        )
        return (
            f"{self.metric} {self.candidate:.3g} against {self.reference:.3g} "
            f"({difference:+.2g}, {interval})"
        )


def sentence_of(changes: tuple[MetricChange, ...]) -> str:
    """Return the changes as one sentence; "" for none."""
    return f"Worse than the reference: {'; '.join(map(str, changes))}." if changes else ""
