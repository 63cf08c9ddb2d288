"""Filters the requests to Dagster's web server: rejects requests from pages of other sites.

Dagster accepts any host name, GraphQL mutations by GET and from forms, and requests of any origin.
A page of another site that is open in the user's browser could therefore start runs.
"""

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, NamedTuple

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sluice.pipelines.trusted_hosts import is_trusted_host

GRAPHQL_PATH = "/graphql"
SAFE_METHODS = frozenset({"GET", "HEAD"})
NOTEBOOK_PATHS = frozenset({"/notebook", "/dagit/notebook"})
"""Paths at which Dagster renders any notebook on this disk, including the notebook's scripts."""

_PAGE_HEADERS = {
    "X-Frame-Options": "DENY",  # prevents clickjacking by pages of other sites
    "Cross-Origin-Resource-Policy": "same-origin",
}
_POLICY_VIOLATION = 1008
"""WebSocket close code 'policy violation'; before the handshake the client gets status 403."""


class RequestRejection(NamedTuple):
    """Status and reason of a rejected request."""

    status: HTTPStatus
    reason: str


def find_rejection(scope: Scope, trusted_hosts: Iterable[str]) -> RequestRejection | None:
    """Return status and reason of a rejected request or WebSocket handshake; None if it is allowed.

    Args:
        scope: ASGI scope of the request.
        trusted_hosts: Host names besides loopback.
    """
    headers = Headers(scope=scope)
    hosts = headers.getlist("host")
    if len(hosts) != 1 or not is_trusted_host(hosts[0], trusted_hosts):
        return RequestRejection(
            HTTPStatus.MISDIRECTED_REQUEST,
            f"The Host header must name this machine, got {hosts}. Open http://localhost with the "
            "port that 'sluice dev' printed, or start it with --trusted-host NAME.",
        )
    return (
        _reject_path(scope)
        or _reject_other_origin(scope, headers, hosts[0])
        or _reject_method_or_type(scope, headers)
    )


def _reject_path(scope: Scope) -> RequestRejection | None:
    """Reject paths that match the wrong route of Dagster, and paths of notebooks."""
    path = scope["path"]
    if not path.isprintable():  # '$' in a route also matches before a line feed: '/graphql%0a'
        return RequestRejection(
            HTTPStatus.BAD_REQUEST,
            f"A path must contain printable characters only, got {path!r}.",
        )
    if path.rstrip("/") in NOTEBOOK_PATHS:
        return RequestRejection(
            HTTPStatus.NOT_FOUND, "Notebooks are not served. Open them in Jupyter."
        )
    return None


def _reject_other_origin(scope: Scope, headers: Headers, host: str) -> RequestRejection | None:
    """Reject requests that a page of another origin sent, according to the browser's headers."""
    for origin in headers.getlist("origin"):
        if origin.lower() not in (f"http://{host}".lower(), f"https://{host}".lower()):
            return RequestRejection(
                HTTPStatus.FORBIDDEN,
                f"The request comes from a page of {origin}, and only pages of {host} are allowed. "
                "Behind a proxy, configure it to forward the Host header.",
            )
    is_link_navigation = (
        scope.get("method") in SAFE_METHODS
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )
    for site in headers.getlist("sec-fetch-site"):
        if site not in ("same-origin", "none") and not is_link_navigation:
            return RequestRejection(
                HTTPStatus.FORBIDDEN,
                f"A page of another origin sent the request (Sec-Fetch-Site: {site}).",
            )
    return None


def _reject_method_or_type(scope: Scope, headers: Headers) -> RequestRejection | None:
    """Allow only reads of pages and POST requests with JSON.

    A page of another origin could send other requests that change state, because a browser may send
    them without a preflight request.
    """
    if scope["type"] == "websocket":
        return None
    method = scope["method"]
    is_read = method in SAFE_METHODS and scope["path"].rstrip("/") != GRAPHQL_PATH
    if method != "POST" and not is_read:
        return RequestRejection(
            HTTPStatus.METHOD_NOT_ALLOWED,
            f"{scope['path']} is not served by {method}. Send GraphQL by POST.",
        )
    content_types = [
        header.partition(";")[0].strip().lower() for header in headers.getlist("content-type")
    ]
    if method == "POST" and content_types != ["application/json"]:
        return RequestRejection(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"A POST must have 'Content-Type: application/json', got {content_types}.",
        )
    return None


class UiGuard:
    """ASGI middleware that rejects the requests for which ``find_rejection`` returns a reason."""

    def __init__(self, app: ASGIApp, *, trusted_hosts: Iterable[str]) -> None:
        self._app, self._trusted_hosts = app, frozenset(trusted_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject the request, or forward it to the application."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _PAGE_HEADERS.items():
                    headers[name] = value
            await send(message)

        rejection = find_rejection(scope, self._trusted_hosts)
        if rejection is None:
            await self._app(scope, receive, send_with_headers)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
        else:
            allow_header = (
                {"Allow": "POST"} if rejection.status == HTTPStatus.METHOD_NOT_ALLOWED else {}
            )
            response: Any = PlainTextResponse(rejection.reason, rejection.status, allow_header)
            await response(scope, receive, send_with_headers)
