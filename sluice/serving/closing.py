"""What a client is told when its connection is ended before the app has seen a request."""

import http
from dataclasses import dataclass

from sluice.serving.answers import Problem
from sluice.serving.metrics import Closed


@dataclass(frozen=True, slots=True)
class Closing:
    """Why a connection is ended, and what its client is told."""

    reason: Closed
    status: int
    what: str
    fix: str

    @classmethod
    def header_large(cls, max_bytes: int, max_headers: int) -> "Closing":
        """Return the refusal of a header beyond its limits."""
        return cls(
            "header_large",
            431,
            f"A request line with its headers may have {max_bytes:,} bytes and {max_headers} "
            "headers, and this one has more.",
            "Send what is large in the body.",
        )

    @classmethod
    def header_late(cls, limit_s: float) -> "Closing":
        """Return the refusal of a header that was not complete in time."""
        return cls(
            "header_late",
            408,
            f"A header must be complete within {limit_s:g} s, and was not.",
            "Send it at once.",
        )

    @classmethod
    def body_large(cls, max_bytes: int) -> "Closing":
        """Return the refusal of a body that takes too many bytes on the wire."""
        return cls(
            "body_large",
            413,
            f"A body may take {max_bytes:,} bytes with its chunks' lengths, and this one takes "
            "more.",
            "Send it in fewer and larger chunks.",
        )


def raw_answer(closing: Closing) -> bytes:
    """Return the answer of a refusal as it travels; its connection ends with it."""
    problem = Problem(kind=closing.reason, what=closing.what, why="", do=closing.fix, trace="")
    body = problem.model_dump_json().encode()
    phrase = http.HTTPStatus(closing.status).phrase
    retry = "retry-after: 1\r\n" if closing.status == http.HTTPStatus.SERVICE_UNAVAILABLE else ""
    head = (
        f"HTTP/1.1 {closing.status} {phrase}\r\ncontent-type: application/json\r\n{retry}"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
