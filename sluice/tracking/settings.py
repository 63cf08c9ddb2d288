"""Settings of the mirrors, which copy the registry's history to tracking servers."""

from typing import Literal

from pydantic import Field, field_validator

from sluice.base.settings import Settings

Mode = Literal["offline", "online", "off"]
"""Mode of the mirror to Weights & Biases."""


class MlflowSettings(Settings):
    """Settings of the mirror to an MLflow server; the extra ``mlflow`` must be installed.

    Credentials are read from MLflow's own variables: MLFLOW_TRACKING_USERNAME and
    MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN.
    """

    uri: str = Field(
        pattern=r"^(https?://|databricks)",
        description="Address of the server, such as 'http://mlflow.example:5000'.",
    )
    experiment: str | None = Field(
        None, min_length=1, description="Experiment of the runs; by default the pipeline's name."
    )
    registered_model: str | None = Field(
        None,
        min_length=1,
        description="Name of the registered model; by default the pipeline's name.",
    )
    timeout_s: float = Field(
        60.0, gt=0, le=3600, description="Time limit for mirroring one history entry [s]."
    )


class TrackingSettings(Settings):
    """Settings of the mirrors to Weights & Biases and MLflow."""

    mode: Mode = Field(
        "offline",
        description="Mode of the mirror to W&B: 'offline' writes files for a later sync, 'online' "
        "sends them with the key in WANDB_API_KEY or of 'wandb login', 'off' mirrors nothing to "
        "W&B.",
    )
    project: str = Field("sluice", min_length=1, description="Project of the runs in W&B.")
    entity: str | None = Field(
        None, description="User or team in W&B; by default the owner of the key."
    )
    group: str | None = Field(
        None, description="Group of the runs of versions in W&B; by default the pipeline's name."
    )
    tags: tuple[str, ...] = Field((), strict=False, description="Tags of every run.")
    fold_runs: bool = Field(
        True,
        description="Whether each fold run of a training is also logged as a run of W&B, while it "
        "trains.",
    )
    log_weights: bool = Field(
        False, description="Whether the weights of each fold run are stored as an artifact."
    )
    system_metrics: bool = Field(
        False,
        description="Whether W&B collects the use of CPU, GPU, memory, disk and network of this "
        "machine during fold runs and trials.",
    )
    timeout_s: float = Field(
        60.0, gt=0, le=3600, description="Time limit for mirroring one run [s]."
    )
    mlflow: MlflowSettings | None = Field(
        None, description="MLflow server to which the registry is mirrored; by default none."
    )

    @field_validator("mode", mode="before")
    @classmethod
    def _accept_false_as_off(cls, mode: object) -> object:
        """Convert False to 'off', because YAML reads the word off as False."""
        return "off" if mode is False else mode
