"""Settings of a search: its budget, and how it suggests and stops trials."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, field_validator

from sluice.base.settings import Settings

Scheduler = Literal["auto", "asha", "pbt", "median", "none"]


class ClassSettings(Settings):
    """A scheduler or searcher of Ray Tune, given by import path and arguments.

    The value of an argument may itself be a mapping with a class. With ``arguments`` in this
    mapping, the value is an instance of the class, such as a sampler of Optuna. Otherwise the value
    is the class itself, such as an optimizer of Nevergrad.
    """

    model_config = ConfigDict(
        validate_by_alias=True, validate_by_name=True, serialize_by_alias=True
    )

    path: str = Field(
        alias="class",
        min_length=3,
        description="Import path of the class, such as 'ray.tune.schedulers.pb2:PB2'.",
    )
    arguments: dict[str, Any] = Field(
        {},
        description="Arguments of the class by name; the search fills in arguments that it "
        "determines.",
    )


def _discriminator(value: Any) -> str:
    return "class" if isinstance(value, dict | ClassSettings) else "name"


class SearchSettings(Settings):
    """Number of trials, and how they are suggested and stopped."""

    num_trials: int = Field(
        20, ge=2, le=10_000, description="Number of trials; with pbt, the size of the population."
    )
    scheduler: Annotated[
        Annotated[Scheduler, Tag("name")] | Annotated[ClassSettings, Tag("class")],
        Discriminator(_discriminator),
    ] = Field(
        "auto",
        description="'auto' (by the number of trials), 'asha', 'median', 'pbt', 'none' (no early "
        "stopping), or {class: ..., arguments: ...} for any scheduler of Ray Tune.",
    )
    searcher: ClassSettings | None = Field(
        None,
        description="{class: ..., arguments: ...} for any searcher of Ray Tune. If not set, "
        "the number of trials decides between random values and TPE.",
    )
    seed: int = Field(
        0, ge=0, description="Base seed of searcher, scheduler, weights, row order and dropout."
    )
    folds: tuple[int, ...] = Field(
        (0,),
        min_length=1,
        strict=False,
        description="Folds whose train and validation rows are used; the loss of a trial is the "
        "mean over these folds.",
    )
    concurrent_trials: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="Maximum number of concurrent trials, which affects the decisions of an "
        "ordered search. If not set: the whole population with pbt; otherwise 8 in an ordered "
        "search, and as many as fit on the cluster in an unordered search.",
    )
    ordered: bool | None = Field(
        None,
        description="Whether scheduler and searcher get results in an order that does not depend "
        "on the speed of workers. The decisions are then equal for any number of workers. If not "
        "set: true on this machine, false on a cluster (compute.address).",
    )
    leading_parameters: int = Field(
        3,
        ge=1,
        description="With fewer than 20 trials, only this number of parameters is searched, from "
        "the first parameter on. With pbt, or a searcher that is given by class, all parameters "
        "are searched.",
    )
    startup_trials: int = Field(10, ge=1, description="Number of random trials before TPE starts.")
    grace_epochs: int = Field(
        10,
        ge=1,
        description="Minimum number of epochs before a trial may be stopped. The minimum is "
        "reduced if training.max_epochs is not higher.",
    )
    reduction: int = Field(
        3,
        ge=2,
        description="Reduction factor of ASHA: at each rung, about 1/reduction of the trials "
        "continue.",
    )
    perturbation_epochs: int = Field(
        5, ge=1, description="Number of epochs between two steps of PBT."
    )
    report_epochs: int = Field(
        1,
        ge=1,
        description="Number of epochs between two reports of a trial to a scheduler that is given "
        "by class; each report writes a checkpoint.",
    )

    @field_validator("folds")
    @classmethod
    def _require_distinct_folds(cls, folds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(folds)) != len(folds) or min(folds) < 0:
            raise ValueError("folds must be distinct and not negative")
        return tuple(sorted(folds))
