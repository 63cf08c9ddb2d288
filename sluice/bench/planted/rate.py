"""A proportion of runs or simulations, with confidence intervals."""

from pydantic import Field

from sluice.base.settings import Record


class Rate(Record):
    """A proportion of runs or simulations, with 95 % confidence intervals."""

    count: int = Field(ge=0, description="Number of runs with the property.")
    total: int = Field(ge=1, description="Number of all runs.")

    @property
    def rate(self) -> float:
        """``count`` divided by ``total``."""
        return self.count / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's two-sided 95 % interval."""
        from scipy.stats import binomtest

        bounds = binomtest(self.count, self.total).proportion_ci(method="wilson")
        return float(bounds.low), float(bounds.high)

    @property
    def exact_interval(self) -> tuple[float, float]:
        """Exact two-sided 95 % interval.

        Source:
            Clopper and Pearson (1934), Biometrika 26(4).
        """
        # scipy.special has the same quantile as scipy.stats, whose import takes a second.
        from scipy.special import betaincinv

        count, total = self.count, self.total
        low = float(betaincinv(count, total - count + 1, 0.025)) if count else 0.0
        high = float(betaincinv(count + 1, total - count, 0.975)) if count < total else 1.0
        return low, high

    @property
    def exact_text(self) -> str:
        """Count, share and exact interval, for reports."""
        low, high = self.exact_interval
        return (
            f"{self.count} of {self.total} ({self.rate:.1%}, 95 % interval {low:.1%} to {high:.1%})"
        )

    def __str__(self) -> str:
        low, high = self.interval
        return f"{100 * self.rate:.1f} % ({100 * low:.1f} to {100 * high:.1f})"
