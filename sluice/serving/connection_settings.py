"""Limits of connections: their number, the size of request headers, and timeouts."""

from typing import Self

from pydantic import Field, model_validator

from sluice.base.settings import Settings


class ConnectionSettings(Settings):
    """Limits that ``sluice serve`` enforces while it parses HTTP.

    With Ray Serve, the proxy of Ray accepts the connections, so these limits do not apply.
    """

    max_connections: int = Field(
        2048,
        ge=8,
        le=1_000_000,
        description="Maximum number of open connections of one process. At the limit, a new "
        "connection replaces the connection that has waited longest without a request in progress. "
        "The limit is lower if the system grants fewer file descriptors.",
    )
    max_per_address: int = Field(
        512,
        ge=1,
        le=1_000_000,
        description="Maximum number of open connections from one IPv4 address or one /64 subnet "
        "of IPv6. Behind a reverse proxy, all connections have the proxy's address: set this to "
        "max_connections there.",
    )
    reserved_descriptors: int = Field(
        128,
        ge=32,
        le=100_000,
        description="Number of file descriptors that connections never use. They are reserved for "
        "the registry, artifacts, logs and the challenger's process.",
    )
    max_header_bytes: int = Field(
        32 * 2**10,
        ge=1024,
        le=2**20,
        description="Maximum size of a request line with its headers and trailers [bytes]. A "
        "larger request is refused with status 431.",
    )
    max_headers: int = Field(
        100,
        ge=8,
        le=10_000,
        description="Maximum number of headers and trailers of a request. A request with more "
        "headers is refused with status 431.",
    )
    header_timeout_s: float = Field(
        10.0,
        gt=0,
        le=600,
        description="Maximum time from the start of a connection, or from the first byte of a "
        "further request, to the end of the header [s]. A request whose header takes longer is "
        "refused with status 408. The TLS handshake has the same maximum time.",
    )
    idle_timeout_s: float = Field(
        30.0,
        gt=0,
        le=3600,
        description="Maximum time between two requests of a connection [s]. If no further request "
        "arrives within this time after a response, the connection is closed.",
    )
    write_timeout_s: float = Field(
        10.0,
        gt=0,
        le=600,
        description="Maximum time for which a client may leave its response unread [s]. A slower "
        "client is disconnected.",
    )

    @model_validator(mode="after")
    def _require_valid_address_limit(self) -> Self:
        if self.max_per_address > self.max_connections:
            raise ValueError(
                "max_per_address must be at most max_connections, got "
                f"{self.max_per_address} and {self.max_connections}"
            )
        return self
