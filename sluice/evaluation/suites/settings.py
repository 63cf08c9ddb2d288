"""Settings of regression suites and of their guards."""

from typing import Self

from pydantic import Field, model_validator

from sluice.base.settings import Settings


class SuiteGuard(Settings):
    """Guard on a suite: a candidate must satisfy all limits that are set."""

    suite: str = Field(description="Name of the suite; its newest version is used.")
    max_broken_share: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Maximum share of broken rows among the scored rows [rate]. A row is broken if "
        "the reference is right on it and the candidate is wrong.",
    )
    min_fixed: int | None = Field(
        None,
        ge=1,
        description="Minimum number of fixed rows. A row is fixed if the reference is wrong on it "
        "and the candidate is right.",
    )
    margin: float | None = Field(
        None,
        ge=0,
        description="Maximum increase of the mean loss on the suite from reference to candidate "
        "[loss units]. The guard passes if the increase is significantly below this margin, at "
        "suites.alpha.",
    )

    @model_validator(mode="after")
    def _require_criterion(self) -> Self:
        if self.max_broken_share is None and self.min_fixed is None and self.margin is None:
            raise ValueError(
                f"the guard of suite '{self.suite}' needs max_broken_share, min_fixed or margin"
            )
        return self


class SuiteSettings(Settings):
    """Settings for the creation and evaluation of suites."""

    hard_share: float = Field(
        0.05,
        gt=0,
        le=0.5,
        description="Share of the test window's rows that form the hard suite [rate]. The rows "
        "with the highest losses are selected.",
    )
    wrong_quantile: float = Field(
        0.9,
        gt=0,
        lt=1,
        description="Quantile of the reference's losses on the window [rate]. A model counts as "
        "wrong on a row if its loss is above this quantile. Not used for classifiers.",
    )
    alpha: float = Field(
        0.05, gt=0, lt=0.5, description="One-sided error rate of each bound of the gain [rate]."
    )
    min_rows: int = Field(
        30,
        ge=10,
        description="Minimum number of scored rows of a suite. With fewer, no confidence bounds of "
        "the gain are computed [rows].",
    )
    min_scored_share: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Minimum share of a suite's rows that must be scored for its guard to pass "
        "[rate]. A row is not scored if it is no longer in the data, if the candidate was trained "
        "on it, or if it is in no test window.",
    )
    guards: tuple[SuiteGuard, ...] = Field(
        (), strict=False, description="Guards on suites; a candidate must pass all of them."
    )

    @property
    def guarded_suites(self) -> tuple[str, ...]:
        """Names of the suites with a guard."""
        return tuple(guard.suite for guard in self.guards)

    @model_validator(mode="after")
    def _require_one_guard_per_suite(self) -> Self:
        names = self.guarded_suites
        if len(set(names)) != len(names):
            raise ValueError(
                f"a suite must have at most one guard, got guards for {', '.join(sorted(names))}"
            )
        return self
