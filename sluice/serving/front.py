"""Before and after the app: a trace id, the host, the body's limit, a log line and a count.

Written to ASGI itself, because a middleware that wraps requests and responses costs as much as the
rest of the router together.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sluice.observability import tracing
from sluice.serving.answers import Problem
from sluice.serving.hosts import TrustedHosts
from sluice.serving.metrics import OTHER, ROUTES, Metrics
from sluice.serving.random_pool import RandomPool
from sluice.serving.refusals import Refusal, TooLarge, WrongHost

_NOTES = "sluice.notes"
_BROKEN = 500


@dataclass(slots=True)
class Notes:
    """What is known of one request, for its log line."""

    trace: str
    began: float
    facts: dict[str, Any] = field(default_factory=dict)
    """Facts of our own for the log, never anything a client sent."""


def notes_of(request: Request) -> Notes:
    """Return the notes of a request."""
    found: Notes = request.scope[_NOTES]
    return found


class Front:
    """The app as uvicorn runs it."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_body_bytes: int,
        hosts: TrustedHosts,
        metrics: Metrics,
        log: Any,
        is_draining: Callable[[], bool],
    ) -> None:
        self.app = app
        self._is_draining = is_draining
        self._max_body_bytes = max_body_bytes
        self._hosts = hosts
        self._metrics = metrics
        self._log = log
        self._random = RandomPool()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        traceparent = headers.get(b"traceparent", b"").decode("latin-1")
        notes = Notes(trace=self._trace(traceparent), began=time.monotonic())
        scope[_NOTES] = notes
        status = 500
        trace = notes.trace.encode()

        async def tagged(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                added = [(b"x-trace-id", trace)]
                if self._is_draining():  # or a next request would meet a closed connection
                    added.append((b"connection", b"close"))
                message["headers"] = [*message["headers"], *added]
            await send(message)

        # The path of an unknown route and an unknown method are words of the client.
        route = scope["path"] if scope["path"] in ROUTES else OTHER
        method = scope["method"] if scope["method"] in ("GET", "POST") else OTHER
        with tracing.server_span(
            f"{method} {route}", trace=notes.trace, traceparent=traceparent
        ) as span:
            try:
                self._hosts.require([v for k, v in scope["headers"] if k == b"host"])
                if _declared_bytes(headers) > self._max_body_bytes:
                    raise self._refusal()
            except (WrongHost, TooLarge) as refusal:
                notes.facts["refused"] = refusal.kind
                await _refuse(refusal, notes, tagged)
            else:
                await self.app(scope, self._limited(receive), tagged)
            finally:
                self._note(notes, route=route, method=method, status=status)
                span.tell(status=status, **notes.facts)
                if status >= _BROKEN:
                    span.fail(str(status))

    def _trace(self, traceparent: str) -> str:
        """Return the caller's trace id when it sent a valid one, or a new one."""
        caller = tracing.TraceContext.parse(traceparent) if traceparent else None
        return self._random.take(16).hex() if caller is None else caller.trace

    def _limited(self, receive: Receive) -> Receive:
        """Return ``receive``, which raises once the body is beyond the limit."""
        left = self._max_body_bytes

        async def limited() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise self._refusal()
            return message

        return limited

    def _refusal(self) -> TooLarge:
        return TooLarge(
            f"A body may have {self._max_body_bytes:,} bytes, and this one has more.",
            fix="Send fewer windows in each request.",
        )

    def _note(self, notes: Notes, *, route: str, method: str, status: int) -> None:
        seconds = time.monotonic() - notes.began
        self._metrics.count_answer(route=route, method=method, status=status, seconds=seconds)
        self._log.info(
            "request",
            trace=notes.trace,
            method=method,
            route=route,
            status=status,
            ms=round(seconds * 1e3, 2),
            **notes.facts,
        )


async def _refuse(refusal: Refusal, notes: Notes, send: Send) -> None:
    body = Problem.of(refusal, trace=notes.trace).model_dump_json().encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),  # or the server would go on reading what nobody wants
    ]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _declared_bytes(headers: dict[bytes, bytes]) -> int:
    declared = headers.get(b"content-length", b"0")
    return int(declared) if declared.isdigit() else 0
