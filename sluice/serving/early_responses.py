"""Responses to clients whose connection ends before the app has seen a request."""

import http
from dataclasses import dataclass

from sluice.serving.metrics import CloseReason
from sluice.serving.schemas import ErrorResponse


@dataclass(frozen=True, slots=True)
class EarlyResponse:
    """Why a connection is closed, and the response to its client."""

    reason: CloseReason
    status: int
    what: str
    fix: str

    @classmethod
    def header_large(cls, max_bytes: int, max_headers: int) -> "EarlyResponse":
        """Return the response to a header beyond its limits."""
        return cls(
            "header_large",
            431,
            f"A request line with its headers may have {max_bytes:,} bytes and {max_headers} "
            "headers, but this one has more.",
            "Move large values to the body.",
        )

    @classmethod
    def header_late(cls, limit_s: float) -> "EarlyResponse":
        """Return the response to a header that was not complete in time."""
        return cls(
            "header_late",
            408,
            f"The header was not complete within {limit_s:g} s.",
            "Send the header without pauses.",
        )

    @classmethod
    def body_large(cls, max_bytes: int) -> "EarlyResponse":
        """Return the response to a body with too many bytes on the wire."""
        return cls(
            "body_large",
            413,
            f"A body may have {max_bytes:,} bytes including its chunk headers, but this one has "
            "more.",
            "Send it in fewer and larger chunks.",
        )


def raw_response(response: EarlyResponse) -> bytes:
    """Return the bytes of the response; the connection is closed after it."""
    problem = ErrorResponse(
        kind=response.reason, what=response.what, why="", do=response.fix, trace=""
    )
    body = problem.model_dump_json().encode()
    phrase = http.HTTPStatus(response.status).phrase
    retry = "retry-after: 1\r\n" if response.status == http.HTTPStatus.SERVICE_UNAVAILABLE else ""
    head = (
        f"HTTP/1.1 {response.status} {phrase}\r\ncontent-type: application/json\r\n{retry}"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
