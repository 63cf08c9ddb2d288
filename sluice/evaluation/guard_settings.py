"""Settings of the guards: further conditions for the promotion of a better candidate."""

from typing import Literal, Self

from pydantic import Field, model_validator

from sluice.base.settings import Settings


class MetricMargin(Settings):
    """A metric that must not deteriorate by more than a margin."""

    metric: str = Field(min_length=1, description="Name of a metric of the workload.")
    better: Literal["higher", "lower"] = Field(
        description="Direction in which the metric improves."
    )
    margin: float = Field(
        ge=0,
        description="Maximum deterioration of the mean metric, compared with the reference [metric "
        "units]. The guard passes if the deterioration is significantly below this margin, at "
        "alpha.",
    )


class HardLimit(Settings):
    """Limits for a candidate's metric, independent of the reference."""

    metric: str = Field(min_length=1, description="Name of a metric of the workload.")
    minimum: float | None = Field(
        None, description="Minimum of the candidate's mean metric [metric units]."
    )
    maximum: float | None = Field(
        None, description="Maximum of the candidate's mean metric [metric units]."
    )

    @model_validator(mode="after")
    def _require_valid_bounds(self) -> Self:
        low, high = self.minimum, self.maximum
        if low is None and high is None:
            raise ValueError(f"a limit of {self.metric!r} needs a minimum, a maximum or both")
        if low is not None and high is not None and low > high:
            raise ValueError(f"minimum {low:g} of {self.metric!r} is above its maximum {high:g}")
        return self


class GuardSettings(Settings):
    """Guards of one pipeline; a PROMOTE requires that all of them pass.

    Margins are tested at the alpha of the comparison. Limits are compared with the mean of a metric
    itself, not with a confidence bound. Additional guards never increase the false promotion rate,
    because all guards must pass (intersection-union test, Berger 1982).
    """

    metrics: tuple[MetricMargin, ...] = Field(
        (), strict=False, description="Metrics that must not deteriorate by more than a margin."
    )
    limits: tuple[HardLimit, ...] = Field(
        (), strict=False, description="Limits for metrics of the candidate."
    )
    approved: str | None = Field(
        None,
        min_length=1,
        description="Candidate digest of a version that a person approved; null disables the "
        "guard. Candidates are compared with this version, too. The approved version stays fixed "
        "while production changes, so that small deteriorations cannot accumulate.",
    )
    approved_margin_share: float = Field(
        0.01,
        ge=0,
        lt=1,
        description="Maximum increase of the mean loss, compared with the approved version, as a "
        "share of the approved version's mean loss. The guard passes if the increase is "
        "significantly below this margin, at alpha.",
    )
    deployed_margin_share: float | None = Field(
        0.01,
        ge=0,
        lt=1,
        description="Maximum increase of the mean loss from the deployed reference to the "
        "deployed ensemble of the candidate, as a share of the deployed reference's mean loss. "
        "The guard passes if the increase is significantly below this margin, at alpha. 0 requires "
        "a significantly lower loss; null disables the guard.",
    )

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the metrics that a margin or a limit guards, sorted."""
        margins, limits = (m.metric for m in self.metrics), (m.metric for m in self.limits)
        return tuple(sorted({*margins, *limits}))

    @model_validator(mode="after")
    def _require_unique_metrics(self) -> Self:
        for kind, names in (
            ("margin", [m.metric for m in self.metrics]),
            ("limit", [m.metric for m in self.limits]),
        ):
            repeated_names = sorted({name for name in names if names.count(name) > 1})
            if repeated_names:
                raise ValueError(
                    f"a metric must have at most one {kind}, got several for "
                    f"{', '.join(repeated_names)}"
                )
        return self
