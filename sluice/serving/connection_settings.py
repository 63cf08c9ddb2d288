"""Limits of connections and of the bytes sent before a request reaches the app."""

from typing import Self

from pydantic import Field, model_validator

from sluice.base.settings import Settings


class ConnectionSettings(Settings):
    """Limits that ``sluice serve`` enforces in the protocol; Ray's own proxy does not."""

    max_connections: int = Field(
        2048,
        ge=8,
        le=1_000_000,
        description="Open connections of one process. Beyond that the connection that has "
        "waited longest without a request in progress is closed for a new one. "
        "Fewer if the system grants fewer file descriptors.",
    )
    max_per_address: int = Field(
        512,
        ge=1,
        le=1_000_000,
        description="Open connections from one address, or from one /64 network of IPv6. Behind "
        "a reverse proxy all connections come from its address; set it to "
        "max_connections there.",
    )
    reserved_descriptors: int = Field(
        128,
        ge=32,
        le=100_000,
        description="File descriptors that connections never use, reserved for the registry, "
        "artifacts, logs and the challenger's process.",
    )
    max_header_bytes: int = Field(
        32 * 2**10,
        ge=1024,
        le=2**20,
        description="Larger request lines with headers and trailers are refused with 431 [bytes].",
    )
    max_headers: int = Field(
        100,
        ge=8,
        le=10_000,
        description="Requests with more headers and trailers are refused with 431.",
    )
    header_timeout_s: float = Field(
        10.0,
        gt=0,
        le=600,
        description="Time from the start of a connection, or from the first byte of a further "
        "request, until the header must be complete; else 408. Also the timeout of "
        "the TLS handshake [s].",
    )
    idle_timeout_s: float = Field(
        30.0,
        gt=0,
        le=3600,
        description="A connection without a request is closed this long after its last response "
        "[s].",
    )
    write_timeout_s: float = Field(
        10.0,
        gt=0,
        le=600,
        description="A client that does not read its response for this long is disconnected [s].",
    )

    @model_validator(mode="after")
    def _an_address_has_a_part(self) -> Self:
        if self.max_per_address > self.max_connections:
            raise ValueError(
                "max_per_address must be at most max_connections, got "
                f"{self.max_per_address} and {self.max_connections}"
            )
        return self
