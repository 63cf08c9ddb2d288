"""Which requests reach Dagster's web server: those of its own page, and of programs on purpose.

Dagster answers to any name, takes GraphQL mutations by GET and from forms, and does not ask where a
request comes from: a page of another site, open in the user's browser, could start runs.
"""

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, NamedTuple

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sluice.pipelines.trusted_hosts import is_trusted_host

GRAPHQL = "/graphql"
READING = frozenset({"GET", "HEAD"})
NOTEBOOKS = frozenset({"/notebook", "/dagit/notebook"})
"""Paths by which Dagster makes a page of any notebook of this disk, its scripts included."""

_PAGE_HEADERS = {
    "X-Frame-Options": "DENY",  # a foreign page may not lay the UI's buttons under the mouse
    "Cross-Origin-Resource-Policy": "same-origin",
}
_REFUSED_WEBSOCKET = 1008
"""Close code 'policy violation'; before the handshake's end the client sees status 403."""


class Refusal(NamedTuple):
    """Why a request is not answered."""

    status: HTTPStatus
    reason: str


def refuse(scope: Scope, trusted_hosts: Iterable[str]) -> Refusal | None:
    """Return why a request or WebSocket handshake is refused; None when it is served.

    Args:
        scope: As ASGI describes the request.
        trusted_hosts: Names beside those of loopback.
    """
    headers = Headers(scope=scope)
    hosts = headers.getlist("host")
    if len(hosts) != 1 or not is_trusted_host(hosts[0], trusted_hosts):
        return Refusal(
            HTTPStatus.MISDIRECTED_REQUEST,
            f"The Host header must name this machine, got {hosts}. Open http://localhost with the "
            "port that 'sluice dev' printed, or start it with --trusted-host NAME.",
        )
    return _wrong_path(scope) or _foreign(scope, headers, hosts[0]) or _wrong_form(scope, headers)


def _wrong_path(scope: Scope) -> Refusal | None:
    """Refuse paths that Dagster's routes take for others, and pages that are not Dagster's own."""
    path = scope["path"]
    if not path.isprintable():  # a route's '$' also matches before a line feed: '/graphql%0a'
        return Refusal(
            HTTPStatus.BAD_REQUEST,
            f"A path must have printable characters only, got {path!r}.",
        )
    if path.rstrip("/") in NOTEBOOKS:
        return Refusal(HTTPStatus.NOT_FOUND, "Notebooks are not served. Open them in Jupyter.")
    return None


def _foreign(scope: Scope, headers: Headers, host: str) -> Refusal | None:
    """Refuse what a page of another origin sends; programs send neither of the two headers."""
    for origin in headers.getlist("origin"):
        if origin.lower() not in (f"http://{host}".lower(), f"https://{host}".lower()):
            return Refusal(
                HTTPStatus.FORBIDDEN,
                f"The request comes from a page of {origin}, and only pages of {host} are served. "
                "Behind a proxy, let it pass the Host header on.",
            )
    follows_link = (
        scope.get("method") in READING
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )
    for site in headers.getlist("sec-fetch-site"):
        if site not in ("same-origin", "none") and not follows_link:
            return Refusal(
                HTTPStatus.FORBIDDEN,
                f"A page of another origin sent the request (Sec-Fetch-Site: {site}).",
            )
    return None


def _wrong_form(scope: Scope, headers: Headers) -> Refusal | None:
    """Refuse the forms that a foreign page can send without the browser asking first."""
    if scope["type"] == "websocket":
        return None
    method = scope["method"]
    reads = method in READING and scope["path"].rstrip("/") != GRAPHQL
    if method != "POST" and not reads:
        return Refusal(
            HTTPStatus.METHOD_NOT_ALLOWED,
            f"{scope['path']} is not served by {method}. Send GraphQL by POST.",
        )
    types = [kind.partition(";")[0].strip().lower() for kind in headers.getlist("content-type")]
    if method == "POST" and types != ["application/json"]:
        return Refusal(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"A POST must have 'Content-Type: application/json', got {types}.",
        )
    return None


class UiGuard:
    """ASGI application in front of another one that refuses what a foreign page may send."""

    def __init__(self, app: ASGIApp, *, trusted_hosts: Iterable[str]) -> None:
        self._app, self._trusted_hosts = app, frozenset(trusted_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request by a refusal, or hand it on."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _PAGE_HEADERS.items():
                    headers[name] = value
            await send(message)

        refusal = refuse(scope, self._trusted_hosts)
        if refusal is None:
            await self._app(scope, receive, send_with_headers)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _REFUSED_WEBSOCKET})
        else:
            allow = {"Allow": "POST"} if refusal.status == HTTPStatus.METHOD_NOT_ALLOWED else {}
            answer: Any = PlainTextResponse(refusal.reason, refusal.status, allow)
            await answer(scope, receive, send_with_headers)
