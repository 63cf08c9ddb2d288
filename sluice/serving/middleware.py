"""ASGI middleware: trace id, host check, size limit of the body, log line and request count.

The middleware uses the ASGI interface directly. A middleware class of Starlette would wrap each
request and response in objects, which costs as much as the rest of Starlette's routing.
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

_INFO_KEY = "sluice.request_info"
"""Key of the ``RequestInfo`` in the ASGI scope."""
_SERVER_ERROR = 500
"""Minimum status of a server error, which marks the span as failed."""


@dataclass(slots=True)
class RequestInfo:
    """Information about one request for its log line."""

    trace_id: str
    """Trace id of the request."""

    arrived_at: float
    """Time at which the header of the request was complete [s, monotonic]."""

    log_fields: dict[str, Any] = field(default_factory=dict)
    """Fields for the log; they must not contain request data. If the client got an error, the field
    ``refused`` is the kind of the error."""


def request_info(request: Request) -> RequestInfo:
    """Return the information about a request."""
    info: RequestInfo = request.scope[_INFO_KEY]
    return info


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
        info = RequestInfo(trace_id=self._trace_id(traceparent), arrived_at=time.monotonic())
        scope[_INFO_KEY] = info
        status = 500
        trace_header = info.trace_id.encode()

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                new_headers = [(b"x-trace-id", trace_header)]
                if self._is_draining():  # the next request on this connection would fail
                    new_headers.append((b"connection", b"close"))
                message["headers"] = [*message["headers"], *new_headers]
            await send(message)

        # Unknown routes and methods are not logged, because clients can choose their text.
        route = scope["path"] if scope["path"] in ROUTES else OTHER
        method = scope["method"] if scope["method"] in ("GET", "POST") else OTHER
        with spans.server_span(
            f"{method} {route}", trace_id=info.trace_id, traceparent=traceparent
        ) as span:
            try:
                self._hosts.require([v for k, v in scope["headers"] if k == b"host"])
                if _declared_bytes(headers) > self._max_body_bytes:
                    raise self._too_large()
            except (MisdirectedRequest, PayloadTooLarge) as error:
                info.log_fields["refused"] = error.kind
                await _send_error(error, info, send_with_headers)
            else:
                await self.app(scope, self._limit_body(receive), send_with_headers)
            finally:
                self._log_request(info, route=route, method=method, status=status)
                span.set_attributes(status=status, **info.log_fields)
                if status >= _SERVER_ERROR:
                    span.set_error(str(status))

    def _trace_id(self, traceparent: str) -> str:
        """Return the trace id in ``traceparent`` if it is valid, else a new trace id."""
        context = spans.TraceContext.parse(traceparent) if traceparent else None
        return self._random.take(16).hex() if context is None else context.trace_id

    def _limit_body(self, receive: Receive) -> Receive:
        """Return a ``receive`` that raises once the body exceeds its size limit."""
        remaining_bytes = self._max_body_bytes

        async def limited_receive() -> Message:
            nonlocal remaining_bytes
            message = await receive()
            remaining_bytes -= len(message.get("body", b""))
            if remaining_bytes < 0:
                raise self._too_large()
            return message

        return limited_receive

    def _too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(
            f"A body may have at most {self._max_body_bytes:,} bytes, but this body has more.",
            fix="Send less in each request, for example fewer windows.",
        )

    def _log_request(self, info: RequestInfo, *, route: str, method: str, status: int) -> None:
        seconds = time.monotonic() - info.arrived_at
        self._metrics.count_response(route=route, method=method, status=status, seconds=seconds)
        self._log.info(
            "request",
            trace=info.trace_id,
            method=method,
            route=route,
            status=status,
            ms=round(seconds * 1e3, 2),
            **info.log_fields,
        )


async def _send_error(error: HttpError, info: RequestInfo, send: Send) -> None:
    body = ErrorResponse.of(error, trace=info.trace_id).model_dump_json().encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),  # a kept connection would require reading the whole body
    ]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _declared_bytes(headers: dict[bytes, bytes]) -> int:
    content_length = headers.get(b"content-length", b"0")
    return int(content_length) if content_length.isdigit() else 0
