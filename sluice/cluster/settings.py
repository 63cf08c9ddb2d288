"""Where trainings run and what each may use."""

from pydantic import ConfigDict, Field, field_validator, model_validator

from sluice.base.redaction import has_credential, redact
from sluice.base.settings import Settings
from sluice.cluster.runtime_env import RuntimeEnvSettings


class ComputeSettings(Settings):
    """The machines, and the share of them that one training gets; it changes no bit of a result.

    Shares are reserved, not enforced, and a training computes on one thread however many cores it
    reserves: more threads add in another order. Two exceptions: a GPU and a processor do not give
    the same bits, nor do other numbers of ranks.
    """

    # pydantic would repeat a value as it was given, before it was masked.
    model_config = ConfigDict(hide_input_in_errors=True)

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

    runtime_env: RuntimeEnvSettings | None = Field(
        None,
        description="Code, packages and environment variables that Ray brings to every worker of "
        "the cluster; needs 'address'.",
    )
    storage_path: str | None = Field(
        None,
        min_length=1,
        description="Where a search writes results and checkpoints: a folder that all machines "
        "share, or a URL such as 's3://bucket/prefix'; the study's own folder when not set.",
    )

    @field_validator("storage_path", mode="before")
    @classmethod
    def _mask_credential(cls, storage_path: object) -> object:
        # Masked before it is refused, because the error repeats the value that was refused.
        return redact(storage_path) if isinstance(storage_path, str) else storage_path

    @field_validator("storage_path")
    @classmethod
    def _refuse_credential(cls, storage_path: str | None) -> str | None:
        if storage_path is not None and has_credential(storage_path):
            raise ValueError(
                "Ray writes the credentials of a storage_path into the results: leave them out, "
                "and set them in the environment of this process and by runtime_env.env_vars "
                "(AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY), or use the roles of the machines"
            )
        return storage_path

    @model_validator(mode="after")
    def _runtime_env_of_a_cluster(self) -> "ComputeSettings":
        if self.runtime_env is not None and self.address is None:
            raise ValueError(
                "runtime_env needs compute.address: without a cluster, workers run on this "
                "machine with this process's modules and environment; set address, or remove "
                "runtime_env"
            )
        return self

    @model_validator(mode="after")
    def _whole_gpus(self) -> "ComputeSettings":
        if self.gpus_per_worker > 1 and self.gpus_per_worker % 1 != 0:
            raise ValueError(
                "gpus_per_worker must be at most 1, or a whole number: a share lies on one GPU; "
                f"got {self.gpus_per_worker:g}"
            )
        return self
