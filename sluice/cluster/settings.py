"""Where trainings run and what each may use."""

from pydantic import Field

from sluice.settings import Settings


class ComputeSettings(Settings):
    """The machines, and the share of them that one training gets; it changes no bit of a result.

    Two exceptions: a GPU and a processor do not give the same bits, nor do other numbers of ranks.
    """

    address: str | None = Field(
        None,
        description="Ray cluster as 'host:port', 'ray://host:port' or 'auto'; this machine alone "
        "when not set.",
    )
    workers: int | None = Field(
        None, ge=1, le=10_000, description="Trainings at a time; as many as fit when not set."
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
        description="GPUs that one training, or each of its ranks, reserves; shares below 1.",
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
