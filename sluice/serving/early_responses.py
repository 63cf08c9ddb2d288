"""Responses that the protocol sends without the app before it closes a connection."""

import http
from dataclasses import dataclass

from sluice.serving.metrics import CloseReason
from sluice.serving.schemas import ErrorResponse


@dataclass(frozen=True, slots=True)
class EarlyResponse:
    """Reason why a connection is closed, and the response to its client."""

    reason: CloseReason
    status: int
    what: str
    fix: str

    @classmethod
    def header_large(cls, max_bytes: int, max_headers: int) -> "EarlyResponse":
        """Return the response to a header that exceeds its limits."""
        return cls(
            "header_large",
            431,
            f"A request may have at most {max_headers} headers, and {max_bytes:,} bytes in its "
            "request line and headers, but this request has more.",
            "Send fewer headers, or move large values to the body.",
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
        """Return the response to a chunked body that is too large including its chunk headers."""
        return cls(
            "body_large",
            413,
            f"A body may have at most {max_bytes:,} bytes including its chunk headers, but this "
            "body has more.",
            "Send the body in fewer and larger chunks.",
        )


def raw_response(response: EarlyResponse) -> bytes:
    """Return the bytes of a response, after which the connection is closed."""
    content = ErrorResponse(
        kind=response.reason, what=response.what, why="", do=response.fix, trace=""
    )
    body = content.model_dump_json().encode()
    phrase = http.HTTPStatus(response.status).phrase
    retry = "retry-after: 1\r\n" if response.status == http.HTTPStatus.SERVICE_UNAVAILABLE else ""
    head = (
        f"HTTP/1.1 {response.status} {phrase}\r\ncontent-type: application/json\r\n{retry}"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
