"""Settings of the machines that run trainings, and of the resources that each training reserves."""

from pydantic import ConfigDict, Field, field_validator, model_validator

from sluice.base.redaction import has_credential, redact
from sluice.base.settings import Settings
from sluice.cluster.runtime_env import RuntimeEnvSettings


class ComputeSettings(Settings):
    """Machines and resources of trainings.

    These settings do not affect the result of a training, with two exceptions. Results on a GPU and
    on a CPU differ by rounding. Results with different numbers of ranks differ by rounding, too.

    The decisions of an ordered search depend only on the choice between a GPU and a CPU. The
    decisions of an unordered search also depend on the number and the speed of the workers.

    Resources are reserved, but not enforced. A training always uses one thread, even if it reserves
    several cores, because the rounding of sums depends on the number of threads.
    """

    # Keep values out of pydantic's messages, which would contain them before they are masked.
    model_config = ConfigDict(hide_input_in_errors=True)

    address: str | None = Field(
        None,
        description="Ray cluster as 'host:port', 'auto' or, except for a search, "
        "'ray://host:port'; only this machine if not set.",
    )
    workers: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="Maximum number of trainings at a time; as many as fit if not set.",
    )
    cpus_per_worker: float = Field(
        1.0,
        gt=0,
        le=1024,
        description="CPU cores that one training, or each of its ranks, reserves.",
    )
    gpus_per_worker: float = Field(
        0.0,
        ge=0,
        le=64,
        description="GPUs that one training, or each of its ranks, reserves; a fraction up to 1, "
        "or an integer.",
    )
    ranks_per_training: int = Field(
        1,
        ge=1,
        le=1024,
        description="Number of processes that train one model with DistributedDataParallel.",
    )
    retries: int = Field(
        3,
        ge=0,
        le=1000,
        description="Maximum number of times that a training is resumed from its last checkpoint "
        "after its process or machine was lost.",
    )

    runtime_env: RuntimeEnvSettings | None = Field(
        None,
        description="Code, packages and environment variables that Ray provides on every worker "
        "of the cluster; requires 'address'.",
    )
    storage_path: str | None = Field(
        None,
        min_length=1,
        description="Storage of a search's results and checkpoints: a folder that all machines "
        "share, or a URL such as 's3://bucket/prefix'; the study's folder if not set.",
    )

    @field_validator("storage_path", mode="before")
    @classmethod
    def _mask_credential(cls, storage_path: object) -> object:
        # Mask a credential before validation, because the message of a validation error may contain
        # the value.
        return redact(storage_path) if isinstance(storage_path, str) else storage_path

    @field_validator("storage_path")
    @classmethod
    def _refuse_credential(cls, storage_path: str | None) -> str | None:
        if storage_path is not None and has_credential(storage_path):
            raise ValueError(
                "storage_path must not contain credentials, because Ray writes it into the "
                "results: set them in the environment of this process and in "
                "runtime_env.env_vars (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY), or use roles "
                "of the machines"
            )
        return storage_path

    @model_validator(mode="after")
    def _require_address_for_runtime_env(self) -> "ComputeSettings":
        if self.runtime_env is not None and self.address is None:
            raise ValueError(
                "runtime_env requires compute.address: without a cluster, workers run on this "
                "machine with the modules and environment of this process; set address, or remove "
                "runtime_env"
            )
        return self

    @model_validator(mode="after")
    def _require_valid_gpus(self) -> "ComputeSettings":
        if self.gpus_per_worker > 1 and self.gpus_per_worker % 1 != 0:
            raise ValueError(
                "gpus_per_worker must be at most 1 or an integer, because a fraction is a part "
                f"of one GPU; got {self.gpus_per_worker:g}"
            )
        return self
