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
        4 * 2**20,
        ge=1024,
        le=2**30,
        description="Maximum size of a request body [bytes]. A larger body is refused with status "
        "413.",
    )
    max_body_memory_bytes: int = Field(
        128 * 2**20,
        ge=2**16,
        le=2**40,
        description="Maximum memory of all request bodies that are being read, each counted as at "
        "least 64 KiB [bytes]. Further bodies are refused with status 503. If there are several "
        "tokens, one token gets at most half of this memory.",
    )
    max_windows: int = Field(
        256,
        ge=1,
        le=100_000,
        description="Maximum number of elements, such as windows, of a request. A larger request "
        "is refused, because other requests would wait until it is computed.",
    )
    requests_per_s: float = Field(
        2000.0,
        gt=0,
        le=1e6,
        description="Maximum sustained rate of predictions per process [1/s]. It is divided "
        "equally among all tokens for predictions. A token for which the token file sets a rate "
        "has that rate instead.",
    )
    burst_requests: int = Field(
        500,
        ge=1,
        le=1_000_000,
        description="Maximum number of predictions that may arrive at once. requests_per_s limits "
        "the rate after that. Each token gets a part of this number in proportion to its rate.",
    )
    max_in_flight: int = Field(
        256,
        ge=1,
        le=100_000,
        description="Maximum number of predictions in progress. Further requests are refused with "
        "status 503. If there are several tokens, one token gets at most half of this number.",
    )
    deadline_s: float = Field(
        1.0,
        gt=0,
        le=600,
        description="Maximum duration of a prediction [s]. A slower prediction fails with status "
        "504.",
    )
    challenger_deadline_s: float = Field(
        0.4,
        gt=0,
        le=600,
        description="Time after which production answers in place of the challenger [s].",
    )
    body_timeout_s: float = Field(
        10.0,
        gt=0,
        le=600,
        description="Maximum time in which a request body must arrive [s]. A slower body is "
        "refused with status 408.",
    )
    body_grace_s: float = Field(
        5.0,
        gt=0,
        le=600,
        description="Time during which a request body may arrive at any rate [s]. "
        "min_body_bytes_per_s applies after this time.",
    )
    min_body_bytes_per_s: int = Field(
        1024,
        ge=1,
        le=2**30,
        description="Minimum rate of a request body after body_grace_s [bytes/s]. A slower body is "
        "refused with status 408.",
    )
    max_batch_windows: int = Field(
        64,
        ge=1,
        le=4096,
        description="Maximum size of a batch, in which waiting requests are computed together "
        "[elements].",
    )
    max_challenger_queue: int = Field(
        64,
        ge=1,
        le=100_000,
        description="Maximum number of requests that wait for the challenger. Production answers "
        "further requests.",
    )
    max_challenger_memory_bytes: int = Field(
        4 * 2**30,
        ge=2**27,
        le=2**50,
        description="Maximum growth of the resident memory of the challenger's process [bytes]: "
        "from its start until the model is loaded, and again from then on. A process that exceeds "
        "this limit is ended.",
    )
    challenger_load_timeout_s: float = Field(
        60.0,
        gt=0,
        le=3600,
        description="Maximum time in which a challenger must load [s]. A slower challenger has "
        "failed to load.",
    )
    max_challenger_restarts: int = Field(
        5,
        ge=0,
        le=1000,
        description="Maximum number of restarts of a challenger's process that ended.",
    )
    challenger_restart_delay_s: float = Field(
        1.0,
        gt=0,
        le=600,
        description="Delay before the first restart of a challenger's process [s]. The delay "
        "doubles with each further restart.",
    )
    challenger_environment: tuple[EnvironmentName, ...] = Field(
        (),
        strict=False,
        max_length=100,
        description="Names of environment variables that the challenger's process gets in addition "
        "to variables for locale, paths and devices.",
    )
    max_shadow_queue: int = Field(
        32,
        ge=1,
        le=100_000,
        description="Maximum number of background requests in progress; further requests are "
        "dropped. Background requests are shadow requests, faulty requests that are repeated on "
        "the other arm to compare the arms, and sampled requests. For a sampled request, the other "
        "arm predicts, or the embedding is computed.",
    )
    shadow_deadline_s: float = Field(
        1.0,
        gt=0,
        le=600,
        description="Maximum duration of a background request (see max_shadow_queue) [s]. A slower "
        "request counts as a timeout. Exception: a shadow request counts as dropped if its "
        "computation has not started by then.",
    )
    poll_interval_s: float = Field(
        0.5,
        ge=0.01,
        le=60,
        description="Interval at which the traffic split and the token file are read [s]. A change "
        "takes effect after at most this time, or once a new model is loaded.",
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
        description="Interval at which the server reports its counts to the registry [s].",
    )
    samples_per_s: float = Field(
        2.0,
        ge=0,
        le=1000,
        description="Rate at which random requests are sampled [1/s]. Their newest row (for "
        "images and texts: the embedding of the network) and their predictions are stored to "
        "detect drift and to compare the arms. 0 disables sampling.",
    )
    sample_retention_days: float = Field(
        30.0,
        gt=0,
        le=3650,
        description="Age at which samples are deleted, with or without labels [days]. A server "
        "deletes at most a few hundred samples with each report.",
    )
    registry_timeout_s: float = Field(
        5.0,
        gt=0,
        le=600,
        description="Maximum duration of a read of the traffic split, and of a report [s]. A "
        "slower read or report counts as failed.",
    )
    load_retry_s: float = Field(
        10.0,
        ge=0.01,
        le=3600,
        description="Delay before a model that failed to load is loaded again [s]. For a "
        "challenger the delay doubles with each further failure, up to 64 times this value.",
    )
    rollback_cooldown_s: float = Field(
        600.0,
        ge=0,
        le=86_400,
        description="No alert rolls production back within this time after a rollback of "
        "production, or after the rollback or abort of a rollout [s].",
    )
    drain_delay_s: float = Field(
        1.0,
        ge=0,
        le=600,
        description="Time at shutdown from the first failing /readyz until no more connections are "
        "accepted [s].",
    )
    drain_timeout_s: float = Field(
        10.0,
        gt=0,
        le=3600,
        description="Maximum wait for requests in progress at shutdown [s].",
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
                "with different tokens can send bodies at the same time, got "
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
