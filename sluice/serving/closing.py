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
