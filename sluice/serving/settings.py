"""What may vary about the server."""

from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from sluice.base.settings import Settings
from sluice.serving.connection_settings import ConnectionSettings

HostName = Annotated[
    str, StringConstraints(pattern=r"^(\*\.)?[A-Za-z0-9_:]([A-Za-z0-9._:-]{0,251}[A-Za-z0-9:])?$")
]
"""A name or address without a port; '*.' before it for all names below it."""


VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,254}$")]


class ServingSettings(Settings):
    """Limits, deadlines and the pace at which the server follows the registry."""

    max_body_bytes: int = Field(
        4 * 2**20, ge=1024, le=2**30, description="Larger request bodies are refused [bytes]."
    )
    max_body_memory_bytes: int = Field(
        128 * 2**20,
        ge=2**16,
        le=2**40,
        description="Memory of all bodies that are being read, each 64 KiB at least; further ones "
        "get 503. Of several tokens one gets at most a half [bytes].",
    )
    max_windows: int = Field(
        256,
        ge=1,
        le=100_000,
        description="More windows in one request are refused: all others wait for its batch.",
    )
    requests_per_s: float = Field(
        2000.0,
        gt=0,
        le=1e6,
        description="Sustained rate of predictions per process; tokens without a rate of their own "
        "get equal shares [1/s].",
    )
    burst_requests: int = Field(
        500, ge=1, le=1_000_000, description="Requests that may come at once beyond that rate."
    )
    max_in_flight: int = Field(
        256,
        ge=1,
        le=100_000,
        description="Predictions under way at once; further ones get 503. Of several tokens one "
        "gets at most a half.",
    )
    deadline_s: float = Field(
        1.0, gt=0, le=600, description="A prediction is answered by then or refused with 504 [s]."
    )
    challenger_deadline_s: float = Field(
        0.4,
        gt=0,
        le=600,
        description="After this long production answers in the challenger's place [s].",
    )
    body_timeout_s: float = Field(
        10.0, gt=0, le=600, description="A body that is not there by then is refused with 408 [s]."
    )
    body_grace_s: float = Field(
        5.0,
        gt=0,
        le=600,
        description="A body may be slow for so long; after it, one that arrived at less than "
        "min_body_bytes_per_s is refused with 408 [s].",
    )
    min_body_bytes_per_s: int = Field(
        1024, ge=1, le=2**30, description="Slowest average rate of a body [bytes/s]."
    )
    max_batch_windows: int = Field(
        64,
        ge=1,
        le=4096,
        description="Waiting requests are computed together up to this many windows.",
    )
    challenger_waiting: int = Field(
        64, ge=1, le=100_000, description="Requests that may wait for the challenger at once."
    )
    challenger_memory_bytes: int = Field(
        4 * 2**30,
        ge=2**27,
        le=2**50,
        description="The challenger's process is ended when its resident memory has grown by more "
        "since it was ready; while it loads, when it has more [bytes].",
    )
    challenger_load_s: float = Field(
        60.0, gt=0, le=3600, description="A challenger that is not ready by then does not load [s]."
    )
    challenger_restarts: int = Field(
        5,
        ge=0,
        le=1000,
        description="How often a challenger's process that ended is started again.",
    )
    challenger_pause_s: float = Field(
        1.0,
        gt=0,
        le=600,
        description="Pause before the first of these restarts; it doubles with each [s].",
    )
    challenger_environment: tuple[VariableName, ...] = Field(
        (),
        strict=False,
        max_length=100,
        description="Environment variables that the challenger's process sees beside those of "
        "language, paths and devices, such as one that its code reads.",
    )
    shadow_waiting: int = Field(
        32, ge=1, le=100_000, description="Shadow copies that may wait; further ones are dropped."
    )
    shadow_deadline_s: float = Field(
        1.0, gt=0, le=600, description="A shadow copy that is not computed by then is late [s]."
    )
    poll_s: float = Field(
        0.5,
        ge=0.01,
        le=60,
        description="How often the weights and the token file are read; decides how soon [s].",
    )
    recheck_s: float = Field(
        30.0,
        ge=0.01,
        le=86_400,
        description="How often the registry is checked again about what is served, though nothing "
        "changed; a change of pointer, rollout, lineage or log is checked at once [s].",
    )
    report_s: float = Field(
        1.0, ge=0.01, le=60, description="How often the counts are reported to the rollout [s]."
    )
    samples_per_s: float = Field(
        2.0,
        ge=0,
        le=1000,
        description="Requests drawn by chance whose newest row and predictions are kept, for drift "
        "and to compare the arms; 0 keeps none [1/s].",
    )
    keep_samples_days: float = Field(
        30.0,
        gt=0,
        le=3650,
        description="Samples older than that are deleted, labelled or not; a server deletes a few "
        "hundred at most with each report [days].",
    )
    source_timeout_s: float = Field(
        5.0, gt=0, le=600, description="A read of the weights that takes longer has failed [s]."
    )
    retry_s: float = Field(
        10.0, ge=0.01, le=3600, description="Pause before a model that did not load is tried again."
    )
    hook_quiet_s: float = Field(
        600.0,
        ge=0,
        le=86_400,
        description="So long after a rollback no alert rolls production back again [s].",
    )
    notice_s: float = Field(
        1.0,
        ge=0,
        le=600,
        description="How long /readyz says no before the server stops accepting [s].",
    )
    drain_s: float = Field(
        10.0, gt=0, le=3600, description="Longest wait for requests under way at the end [s]."
    )
    trusted_hosts: tuple[HostName, ...] = Field(
        (),
        strict=False,
        max_length=100,
        description="Names by which clients call the server, beside the loopback names and its "
        "--host; '*.example.org' for all below. Other Host headers get 421.",
    )
    connections: ConnectionSettings = Field(
        default_factory=ConnectionSettings, description="Limits at the protocol."
    )

    @model_validator(mode="after")
    def _memory_for_bodies(self) -> Self:
        if self.max_body_memory_bytes < 4 * self.max_body_bytes:
            raise ValueError(
                "max_body_memory_bytes must be at least 4 times max_body_bytes, so that several "
                f"tokens find room, got {self.max_body_memory_bytes} and {self.max_body_bytes}"
            )
        return self

    @model_validator(mode="after")
    def _room_for_a_fallback(self) -> Self:
        if not self.challenger_deadline_s < self.deadline_s:
            raise ValueError(
                f"challenger_deadline_s must be below deadline_s, so that production can still "
                f"answer, got {self.challenger_deadline_s} and {self.deadline_s}"
            )
        return self
