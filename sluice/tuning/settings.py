"""What may vary about a search."""

from typing import Literal

from pydantic import Field, field_validator

from sluice.settings import Settings

Scheduler = Literal["auto", "asha", "pbt", "none"]


class SearchSettings(Settings):
    """How many trials, and how they are chosen and stopped."""

    num_trials: int = Field(20, ge=2, le=10_000, description="Trials; with pbt, its population.")
    scheduler: Scheduler = Field(
        "auto", description="'auto' goes by the budget; 'asha', 'pbt', or 'none' to stop no trial."
    )
    seed: int = Field(0, ge=0, description="Base seed of proposals, weights, order and dropout.")
    folds: tuple[int, ...] = Field(
        (0,),
        min_length=1,
        strict=False,
        description="Folds whose train and validation rows are used; a trial's loss is the mean.",
    )
    concurrent_trials: int = Field(
        4,
        ge=1,
        le=1024,
        description="Trials under way at a time. Part of the decisions: it does not follow the "
        "number of cores, so that any machine finds the same. Best about twice the workers; with "
        "pbt the whole population is under way.",
    )
    leading_parameters: int = Field(
        3, ge=1, description="Parameters searched when the budget is under 20 trials."
    )
    startup_trials: int = Field(10, ge=1, description="Random trials before TPE starts.")
    grace_epochs: int = Field(10, ge=1, description="Epochs before a trial may be stopped.")
    reduction: int = Field(3, ge=2, description="ASHA keeps about one in this many at each rung.")
    perturbation_epochs: int = Field(5, ge=1, description="Epochs between two steps of PBT.")

    @field_validator("folds")
    @classmethod
    def _distinct(cls, folds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(folds)) != len(folds) or min(folds) < 0:
            raise ValueError("folds must be distinct and not negative")
        return tuple(sorted(folds))
