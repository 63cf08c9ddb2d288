"""What else must hold of a candidate that is proven better (STAT-1)."""

from typing import Literal, Self

from pydantic import Field, model_validator

from sluice.base.settings import Settings


class MetricMargin(Settings):
    """A named metric that a better loss must not be paid for with."""

    metric: str = Field(min_length=1, description="Name, as the workload's metrics have it.")
    better: Literal["higher", "lower"] = Field(description="Which way the metric improves.")
    margin: float = Field(
        ge=0, description="The candidate must be proven to lose less than this [metric units]."
    )


class HardLimit(Settings):
    """Bounds that a metric of the candidate must keep, whatever the reference has."""

    metric: str = Field(min_length=1, description="Name, as the workload's metrics have it.")
    minimum: float | None = Field(None, description="Smallest value allowed [metric units].")
    maximum: float | None = Field(None, description="Largest value allowed [metric units].")

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        low, high = self.minimum, self.maximum
        if low is None and high is None:
            raise ValueError(f"a limit of {self.metric!r} needs a minimum, a maximum or both")
        if low is not None and high is not None and low > high:
            raise ValueError(f"minimum {low:g} of {self.metric!r} is above its maximum {high:g}")
        return self


class GuardSettings(Settings):
    """The guards of one pipeline; each must pass for a PROMOTE to stand.

    Every guard is tested at the gate's own alpha: all must pass, so several of them make a false
    promotion rarer, never more frequent (Berger 1982, intersection-union tests).
    """

    metrics: tuple[MetricMargin, ...] = Field(
        (), strict=False, description="Metrics that must not get worse by more than a margin."
    )
    limits: tuple[HardLimit, ...] = Field(
        (), strict=False, description="Bounds that metrics of the candidate must keep."
    )
    approved: str | None = Field(
        None,
        min_length=1,
        description="Candidate digest of the version that a person approved; none when not set. "
        "It stays while production moves, so that small losses cannot add up.",
    )
    approved_margin_share: float = Field(
        0.01,
        ge=0,
        lt=1,
        description="The candidate must be proven to lose less than this share of the approved "
        "version's mean loss against it.",
    )
    deployed_margin_share: float | None = Field(
        0.01,
        ge=0,
        lt=1,
        description="What would be deployed (all seeds as one model) must itself be proven to lose "
        "less than this share of the mean loss of what it replaces; 0: proven better, null: not "
        "asked.",
    )

    @model_validator(mode="after")
    def _once_each(self) -> Self:
        for what, names in (
            ("margin", [m.metric for m in self.metrics]),
            ("limit", [m.metric for m in self.limits]),
        ):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"one {what} a metric, got several for {', '.join(twice)}")
        return self
