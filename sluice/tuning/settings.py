"""What may vary about a search."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, field_validator

from sluice.base.settings import Settings

Scheduler = Literal["auto", "asha", "pbt", "median", "none"]


class ClassSettings(Settings):
    """A scheduler or searcher of Ray Tune by import path.

    An argument may itself be such a mapping: with ``arguments`` it is an object of the class, such
    as a sampler of Optuna, and without them the class itself, such as an optimizer of Nevergrad.
    """

    model_config = ConfigDict(
        validate_by_alias=True, validate_by_name=True, serialize_by_alias=True
    )

    path: str = Field(
        alias="class",
        min_length=3,
        description="Import path of the class, as 'ray.tune.schedulers.pb2:PB2'.",
    )
    arguments: dict[str, Any] = Field(
        {}, description="Arguments of the class by name; what the search knows is filled in."
    )


def _kind(value: Any) -> str:
    return "class" if isinstance(value, dict | ClassSettings) else "name"


class SearchSettings(Settings):
    """How many trials, and how they are chosen and stopped."""

    num_trials: int = Field(20, ge=2, le=10_000, description="Trials; with pbt, its population.")
    scheduler: Annotated[
        Annotated[Scheduler, Tag("name")] | Annotated[ClassSettings, Tag("class")],
        Discriminator(_kind),
    ] = Field(
        "auto",
        description="'auto' follows from the budget; 'asha', 'median', 'pbt', 'none' to stop no "
        "trial, or {class: ..., arguments: ...} for any scheduler of Ray Tune.",
    )
    searcher: ClassSettings | None = Field(
        None,
        description="{class: ..., arguments: ...} for any searcher of Ray Tune; when not set, "
        "random values or TPE by the budget.",
    )
    seed: int = Field(
        0, ge=0, description="Base seed of searcher, scheduler, weights, row order and dropout."
    )
    folds: tuple[int, ...] = Field(
        (0,),
        min_length=1,
        strict=False,
        description="Folds whose train and validation rows are used; a trial's loss is the mean.",
    )
    concurrent_trials: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="Most trials at a time. When not set: 8 (the whole population with pbt) in an "
        "ordered search, where it is part of the decisions; else as many as the cluster holds.",
    )
    ordered: bool | None = Field(
        None,
        description="Report results to scheduler and searcher in an order that does not depend on "
        "the speed of workers, so that any number of them takes the same decisions. When not set: "
        "true on this machine, false on a cluster (compute.address).",
    )
    leading_parameters: int = Field(
        3, ge=1, description="Parameters searched when the budget is under 20 trials."
    )
    startup_trials: int = Field(10, ge=1, description="Random trials before TPE starts.")
    grace_epochs: int = Field(10, ge=1, description="Epochs before a trial may be stopped.")
    reduction: int = Field(3, ge=2, description="ASHA keeps about one in this many at each rung.")
    perturbation_epochs: int = Field(5, ge=1, description="Epochs between two steps of PBT.")
    report_epochs: int = Field(
        1,
        ge=1,
        description="Epochs between two reports of a trial to a scheduler that is given by class; "
        "each report writes a checkpoint.",
    )

    @field_validator("folds")
    @classmethod
    def _distinct(cls, folds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(folds)) != len(folds) or min(folds) < 0:
            raise ValueError("folds must be distinct and not negative")
        return tuple(sorted(folds))
