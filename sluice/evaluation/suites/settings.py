"""What may vary about regression suites and the guards made of them."""

from typing import Self

from pydantic import Field, model_validator

from sluice.base.settings import Settings


class SuiteGuard(Settings):
    """A suite that a candidate has to pass; every limit that is set must hold."""

    suite: str = Field(description="Name of the suite; its newest version counts.")
    max_broken_share: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Most rows that the reference gets right and the candidate wrong, of those "
        "scored [rate].",
    )
    min_fixed: int | None = Field(
        None,
        ge=1,
        description="Fewest rows that the reference gets wrong and the candidate right [rows].",
    )
    margin: float | None = Field(
        None,
        ge=0,
        description="The candidate's mean loss on the suite is proven to be higher by no more "
        "than this [loss units].",
    )

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        if self.max_broken_share is None and self.min_fixed is None and self.margin is None:
            raise ValueError(
                f"the guard of suite '{self.suite}' needs max_broken_share, min_fixed or margin"
            )
        return self


class SuiteSettings(Settings):
    """How suites are made, run and judged (DATA-5)."""

    hard_share: float = Field(
        0.05, gt=0, le=0.5, description="Share of the window's rows that the hard suite takes."
    )
    wrong_quantile: float = Field(
        0.9,
        gt=0,
        lt=1,
        description="A row is wrong when its loss is above this quantile of the reference's losses "
        "on the window; not read where the workload counts mistakes [rate].",
    )
    alpha: float = Field(
        0.05, gt=0, lt=0.5, description="One-sided error rate of each bound of a gain [rate]."
    )
    min_rows: int = Field(
        30, ge=10, description="Fewer scored rows give no interval of the gain [rows]."
    )
    min_scored_share: float = Field(
        0.5,
        gt=0,
        le=1,
        description="A guard says nothing when fewer of a suite's rows can be scored: the others "
        "are gone, or were trained on [rate].",
    )
    guards: tuple[SuiteGuard, ...] = Field(
        (), strict=False, description="Suites that a candidate has to pass."
    )

    @model_validator(mode="after")
    def _one_guard_a_suite(self) -> Self:
        names = [guard.suite for guard in self.guards]
        if len(set(names)) != len(names):
            raise ValueError(f"a suite may have one guard, got {', '.join(sorted(names))}")
        return self
