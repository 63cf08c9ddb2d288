"""Where trainings run and what each may use."""

from pydantic import Field, model_validator

from sluice.settings import Settings


class ComputeSettings(Settings):
    """The machines, and the share of them that one training gets; it changes no bit of a result.

    Shares are reserved, not enforced, and a training computes on one thread however many cores it
    reserves: more threads add in another order. Two exceptions: a GPU and a processor do not give
    the same bits, nor do other numbers of ranks.
    """

    address: str | None = Field(
        None,
        description="Ray cluster as 'host:port', 'ray://host:port' or 'auto'; this machine alone "
        "when not set.",
    )
    workers: int | None = Field(
        None, ge=1, le=10_000, description="Most trainings at a time; as many as fit when not set."
    )
    cpus_per_worker: float = Field(
        1.0,
        gt=0,
        le=1024,
        description="Processor cores that one training, or each of its ranks, reserves.",
    )
    gpus_per_worker: float = Field(
        0.0,
        ge=0,
        le=64,
        description="GPUs that one training, or each of its ranks, reserves; shares below 1, else "
        "whole.",
    )
    ranks_per_training: int = Field(
        1,
        ge=1,
        le=1024,
        description="Processes that fit one model together, by DistributedDataParallel.",
    )
    retries: int = Field(
        3,
        ge=0,
        le=1000,
        description="How often a training goes on elsewhere from its last checkpoint when its "
        "process or machine was lost.",
    )

    @model_validator(mode="after")
    def _whole_gpus(self) -> "ComputeSettings":
        if self.gpus_per_worker > 1 and self.gpus_per_worker % 1 != 0:
            raise ValueError(
                "gpus_per_worker must be at most 1, or a whole number: a share lies on one GPU; "
                f"got {self.gpus_per_worker:g}"
            )
        return self
