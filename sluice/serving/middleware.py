"""ASGI middleware: trace id, host check, size limit of the body, log line and request count.

Written directly against ASGI, because a middleware that wraps requests and responses costs as
much as the rest of the router together.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sluice.observability import spans
from sluice.serving.hosts import TrustedHosts
from sluice.serving.http_errors import HttpError, MisdirectedRequest, PayloadTooLarge
from sluice.serving.metrics import OTHER, ROUTES, Metrics
from sluice.serving.random_pool import RandomPool
from sluice.serving.schemas import ErrorResponse

_INFO_KEY = "sluice.notes"
_BROKEN = 500


@dataclass(slots=True)
class RequestInfo:
    """Information about one request for its log line."""

    trace: str
    began: float
    log_fields: dict[str, Any] = field(default_factory=dict)
    """Fields for the log; never contain request data."""


def request_info(request: Request) -> RequestInfo:
    """Return the information about a request."""
    found: RequestInfo = request.scope[_INFO_KEY]
    return found


class RequestMiddleware:
    """The outermost app, which uvicorn runs."""

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
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        traceparent = headers.get(b"traceparent", b"").decode("latin-1")
        info = RequestInfo(trace=self._trace(traceparent), began=time.monotonic())
        scope[_INFO_KEY] = info
        status = 500
        trace = info.trace.encode()

        async def tagged(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                added = [(b"x-trace-id", trace)]
                if self._is_draining():  # else a further request would find the connection closed
                    added.append((b"connection", b"close"))
                message["headers"] = [*message["headers"], *added]
            await send(message)

        # The client chooses the path of an unknown route and an unknown method; they are not
        # logged.
        route = scope["path"] if scope["path"] in ROUTES else OTHER
        method = scope["method"] if scope["method"] in ("GET", "POST") else OTHER
        with spans.server_span(
            f"{method} {route}", trace=info.trace, traceparent=traceparent
        ) as span:
            try:
                self._hosts.require([v for k, v in scope["headers"] if k == b"host"])
                if _declared_bytes(headers) > self._max_body_bytes:
                    raise self._too_large()
            except (MisdirectedRequest, PayloadTooLarge) as error:
                info.log_fields["refused"] = error.kind
                await _send_error(error, info, tagged)
            else:
                await self.app(scope, self._limited(receive), tagged)
            finally:
                self._log_request(info, route=route, method=method, status=status)
                span.set_attributes(status=status, **info.log_fields)
                if status >= _BROKEN:
                    span.set_error(str(status))

    def _trace(self, traceparent: str) -> str:
        """Return the caller's trace id if it sent a valid one, else a new one."""
        caller = spans.TraceContext.parse(traceparent) if traceparent else None
        return self._random.take(16).hex() if caller is None else caller.trace_id

    def _limited(self, receive: Receive) -> Receive:
        """Return ``receive`` with an error once the body exceeds the limit."""
        left = self._max_body_bytes

        async def limited() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise self._too_large()
            return message

        return limited

    def _too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(
            f"A body may have {self._max_body_bytes:,} bytes, but this one has more.",
            fix="Send fewer windows in each request.",
        )

    def _log_request(self, info: RequestInfo, *, route: str, method: str, status: int) -> None:
        seconds = time.monotonic() - info.began
        self._metrics.count_response(route=route, method=method, status=status, seconds=seconds)
        self._log.info(
            "request",
            trace=info.trace,
            method=method,
            route=route,
            status=status,
            ms=round(seconds * 1e3, 2),
            **info.log_fields,
        )


async def _send_error(error: HttpError, info: RequestInfo, send: Send) -> None:
    body = ErrorResponse.of(error, trace=info.trace).model_dump_json().encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),  # else the server would read the rest of the body
    ]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _declared_bytes(headers: dict[bytes, bytes]) -> int:
    declared = headers.get(b"content-length", b"0")
    return int(declared) if declared.isdigit() else 0
