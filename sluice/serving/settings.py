"""Settings of the server."""

from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from sluice.base.settings import Settings
from sluice.serving.connection_settings import ConnectionSettings

HostName = Annotated[
    str, StringConstraints(pattern=r"^(\*\.)?[A-Za-z0-9_:]([A-Za-z0-9._:-]{0,251}[A-Za-z0-9:])?$")
]
"""A name or address without a port; a leading '*.' matches all names below it."""


EnvironmentName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,254}$")]


class ServingSettings(Settings):
    """Limits, deadlines, and the intervals at which the server follows the registry."""

    max_body_bytes: int = Field(
        4 * 2**20, ge=1024, le=2**30, description="Larger request bodies are refused [bytes]."
    )
    max_body_memory_bytes: int = Field(
        128 * 2**20,
        ge=2**16,
        le=2**40,
        description="Memory of all bodies being read, at least 64 KiB each; further ones are "
        "refused with 503. With several tokens one of them gets at most a half "
        "[bytes].",
    )
    max_windows: int = Field(
        256,
        ge=1,
        le=100_000,
        description="Requests with more windows are refused, because all others wait for their "
        "batch.",
    )
    requests_per_s: float = Field(
        2000.0,
        gt=0,
        le=1e6,
        description="Sustained rate of predictions per process; tokens without their own rate "
        "get equal shares [1/s].",
    )
    burst_requests: int = Field(
        500, ge=1, le=1_000_000, description="Number of requests that may exceed that rate at once."
    )
    max_in_flight: int = Field(
        256,
        ge=1,
        le=100_000,
        description="Largest number of predictions in progress; further ones are refused with "
        "503. With several tokens one of them gets at most a half.",
    )
    deadline_s: float = Field(
        1.0, gt=0, le=600, description="A prediction that takes longer is refused with 504 [s]."
    )
    challenger_deadline_s: float = Field(
        0.4,
        gt=0,
        le=600,
        description="Time after which production answers in place of the challenger [s].",
    )
    body_timeout_s: float = Field(
        10.0, gt=0, le=600, description="A body that takes longer is refused with 408 [s]."
    )
    body_grace_s: float = Field(
        5.0,
        gt=0,
        le=600,
        description="Time in which a body may be slow; after it, a body that arrived at less "
        "than min_body_bytes_per_s is refused with 408 [s].",
    )
    min_body_bytes_per_s: int = Field(
        1024, ge=1, le=2**30, description="Smallest average rate of a body [bytes/s]."
    )
    max_batch_windows: int = Field(
        64,
        ge=1,
        le=4096,
        description="Largest batch of waiting requests [windows].",
    )
    max_challenger_queue: int = Field(
        64, ge=1, le=100_000, description="Largest number of requests that wait for the challenger."
    )
    max_challenger_memory_bytes: int = Field(
        4 * 2**30,
        ge=2**27,
        le=2**50,
        description="The challenger's process is ended when its resident memory has grown by "
        "more than this since it was ready, or exceeds this while it loads [bytes].",
    )
    challenger_load_timeout_s: float = Field(
        60.0,
        gt=0,
        le=3600,
        description="A challenger that is not ready after this time has failed to load [s].",
    )
    max_challenger_restarts: int = Field(
        5,
        ge=0,
        le=1000,
        description="Number of restarts of a challenger's process.",
    )
    challenger_restart_delay_s: float = Field(
        1.0,
        gt=0,
        le=600,
        description="Delay before the first restart; it doubles with each further one [s].",
    )
    challenger_environment: tuple[EnvironmentName, ...] = Field(
        (),
        strict=False,
        max_length=100,
        description="Further environment variables that the challenger's process gets, beside "
        "those of locale, paths and devices.",
    )
    max_shadow_queue: int = Field(
        32,
        ge=1,
        le=100_000,
        description="Largest number of waiting shadow requests; further ones are dropped.",
    )
    shadow_deadline_s: float = Field(
        1.0, gt=0, le=600, description="A shadow request that takes longer counts as a timeout [s]."
    )
    poll_interval_s: float = Field(
        0.5,
        ge=0.01,
        le=60,
        description="Interval at which the traffic split and the token file are read; changes "
        "take effect within it [s].",
    )
    registry_check_interval_s: float = Field(
        30.0,
        ge=0.01,
        le=86_400,
        description="Interval at which the registry is checked for consistency without a "
        "change; a change of pointer, rollout, lineage or log is checked at once "
        "[s].",
    )
    report_interval_s: float = Field(
        1.0,
        ge=0.01,
        le=60,
        description="Interval at which the counts are reported to the registry [s].",
    )
    samples_per_s: float = Field(
        2.0,
        ge=0,
        le=1000,
        description="Rate of random requests whose newest row and predictions are stored, to "
        "detect drift and to compare the arms; 0 stores none [1/s].",
    )
    sample_retention_days: float = Field(
        30.0,
        gt=0,
        le=3650,
        description="Older samples are deleted, labelled or not; a server deletes at most a few "
        "hundred with each report [days].",
    )
    registry_timeout_s: float = Field(
        5.0,
        gt=0,
        le=600,
        description="A read of the traffic split or a report that takes longer has failed [s].",
    )
    load_retry_s: float = Field(
        10.0,
        ge=0.01,
        le=3600,
        description="Delay before a model that failed to load is tried again [s].",
    )
    rollback_cooldown_s: float = Field(
        600.0,
        ge=0,
        le=86_400,
        description="Time after a rollback in which no alert rolls production back again [s].",
    )
    drain_delay_s: float = Field(
        1.0,
        ge=0,
        le=600,
        description="Time between the failing /readyz and the end of accepting connections [s].",
    )
    drain_timeout_s: float = Field(
        10.0, gt=0, le=3600, description="Longest wait for requests in progress at the end [s]."
    )
    trusted_hosts: tuple[HostName, ...] = Field(
        (),
        strict=False,
        max_length=100,
        description="Host names of the server, beside the loopback names and its --host; "
        "'*.example.org' matches all names below it. Other Host headers are refused "
        "with 421.",
    )
    connections: ConnectionSettings = Field(
        default_factory=ConnectionSettings, description="Limits of connections and headers."
    )

    @model_validator(mode="after")
    def _memory_for_bodies(self) -> Self:
        if self.max_body_memory_bytes < 4 * self.max_body_bytes:
            raise ValueError(
                "max_body_memory_bytes must be at least 4 times max_body_bytes, so that several "
                f"tokens fit, got {self.max_body_memory_bytes} and {self.max_body_bytes}"
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
