"""Settings of the server: limits, deadlines and intervals."""

from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from sluice.base.settings import Settings
from sluice.serving.connection_settings import ConnectionSettings

HostName = Annotated[
    str, StringConstraints(pattern=r"^(\*\.)?[A-Za-z0-9_:]([A-Za-z0-9._:-]{0,251}[A-Za-z0-9:])?$")
]
"""A host name or address without a port. '*.example.org' matches all names below example.org."""


EnvironmentName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,254}$")]


class ServingSettings(Settings):
    """Limits, deadlines, and the intervals at which the server reads the registry."""

    max_body_bytes: int = Field(
        4 * 2**20, ge=1024, le=2**30, description="Larger request bodies are refused [bytes]."
    )
    max_body_memory_bytes: int = Field(
        128 * 2**20,
        ge=2**16,
        le=2**40,
        description="Maximum memory of all bodies that are being read, counted as at least 64 KiB "
        "each; further ones are refused with status 503. If there are several tokens, one token "
        "gets at most half of it [bytes].",
    )
    max_windows: int = Field(
        256,
        ge=1,
        le=100_000,
        description="Requests with more elements, such as windows, are refused, because other "
        "requests would wait until this one is computed.",
    )
    requests_per_s: float = Field(
        2000.0,
        gt=0,
        le=1e6,
        description="Maximum sustained rate of predictions per process. Tokens without a rate of "
        "their own share it equally [1/s].",
    )
    burst_requests: int = Field(
        500,
        ge=1,
        le=1_000_000,
        description="Number of requests that may exceed requests_per_s at once.",
    )
    max_in_flight: int = Field(
        256,
        ge=1,
        le=100_000,
        description="Maximum number of predictions in progress; further ones are refused with "
        "status 503. If there are several tokens, one token gets at most half of it.",
    )
    deadline_s: float = Field(
        1.0, gt=0, le=600, description="A prediction that takes longer fails with status 504 [s]."
    )
    challenger_deadline_s: float = Field(
        0.4,
        gt=0,
        le=600,
        description="Time after which production answers in place of the challenger [s].",
    )
    body_timeout_s: float = Field(
        10.0, gt=0, le=600, description="A body that takes longer is refused with status 408 [s]."
    )
    body_grace_s: float = Field(
        5.0,
        gt=0,
        le=600,
        description="Time during which a body may be slow. After it, a body that arrives at less "
        "than min_body_bytes_per_s is refused with status 408 [s].",
    )
    min_body_bytes_per_s: int = Field(
        1024, ge=1, le=2**30, description="Minimum average rate of a body [bytes/s]."
    )
    max_batch_windows: int = Field(
        64,
        ge=1,
        le=4096,
        description="Maximum size of a batch of waiting requests [elements].",
    )
    max_challenger_queue: int = Field(
        64, ge=1, le=100_000, description="Maximum number of requests that wait for the challenger."
    )
    max_challenger_memory_bytes: int = Field(
        4 * 2**30,
        ge=2**27,
        le=2**50,
        description="Memory limit of the challenger's process [bytes]. The process is ended if its "
        "resident memory exceeds this while it loads, or grows by more than this afterwards.",
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
        description="Maximum number of restarts of a challenger's process.",
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
        description="Environment variables that the challenger's process gets in addition to those "
        "for locale, paths and devices.",
    )
    max_shadow_queue: int = Field(
        32,
        ge=1,
        le=100_000,
        description="Maximum number of shadow requests and repeated requests in progress; further "
        "ones are dropped.",
    )
    shadow_deadline_s: float = Field(
        1.0, gt=0, le=600, description="A shadow request that takes longer counts as a timeout [s]."
    )
    poll_interval_s: float = Field(
        0.5,
        ge=0.01,
        le=60,
        description="Interval at which the traffic split and the token file are read [s]. Changes "
        "take effect within this time.",
    )
    registry_check_interval_s: float = Field(
        30.0,
        ge=0.01,
        le=86_400,
        description="Interval at which the consistency of the registry is checked if nothing has "
        "changed [s]. Changes of the production pointer, the rollout, the lineage or the log are "
        "checked at once.",
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
        description="Rate at which random requests are sampled: their newest row (of images and "
        "texts, the embedding of the network) and predictions are stored to detect drift and to "
        "compare the arms; 0 disables sampling [1/s].",
    )
    sample_retention_days: float = Field(
        30.0,
        gt=0,
        le=3650,
        description="Samples are deleted after this time, whether they have labels or not [days]. "
        "A server deletes at most a few hundred with each report.",
    )
    registry_timeout_s: float = Field(
        5.0,
        gt=0,
        le=600,
        description="A read of the traffic split, or a report, that takes longer counts as failed "
        "[s].",
    )
    load_retry_s: float = Field(
        10.0,
        ge=0.01,
        le=3600,
        description="Delay before a model that failed to load is loaded again [s].",
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
        description="At shutdown, the time from the first failing /readyz until no more "
        "connections are accepted [s].",
    )
    drain_timeout_s: float = Field(
        10.0,
        gt=0,
        le=3600,
        description="At shutdown, the maximum wait for requests in progress [s].",
    )
    trusted_hosts: tuple[HostName, ...] = Field(
        (),
        strict=False,
        max_length=100,
        description="Host names of the server in addition to the loopback names and its --host; "
        "'*.example.org' matches all names below example.org. Requests with another Host header "
        "are refused with status 421.",
    )
    connections: ConnectionSettings = Field(
        default_factory=ConnectionSettings, description="Limits of connections and headers."
    )

    @model_validator(mode="after")
    def _require_memory_for_bodies(self) -> Self:
        if self.max_body_memory_bytes < 4 * self.max_body_bytes:
            raise ValueError(
                "max_body_memory_bytes must be at least 4 times max_body_bytes, so that clients "
                "with several tokens can send bodies at once, got "
                f"{self.max_body_memory_bytes} and {self.max_body_bytes}"
            )
        return self

    @model_validator(mode="after")
    def _require_time_for_fallback(self) -> Self:
        if not self.challenger_deadline_s < self.deadline_s:
            raise ValueError(
                f"challenger_deadline_s must be below deadline_s, so that production can still "
                f"answer, got {self.challenger_deadline_s} and {self.deadline_s}"
            )
        return self
