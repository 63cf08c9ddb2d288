"""Routes whose endpoints take the request and return the response directly.

FastAPI resolves dependencies and parses bodies for each request; these routes have no
dependencies, and that took a quarter of the router's time. FastAPI still describes the routes in
/openapi.json.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request, Response, Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer

from sluice.serving.middleware import request_info
from sluice.serving.state import serving_of
from sluice.serving.tokens import Scope

_BEARER = HTTPBearer(auto_error=False, description="A token of the server.")

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class _Open(APIRoute):
    """Route without a token."""

    def get_route_handler(self) -> Handler:
        """Return the endpoint itself."""
        return self.endpoint


def _guarded(scope: Scope) -> type[APIRoute]:
    class Guarded(APIRoute):
        """Route that requires a token of the scope."""

        def get_route_handler(self) -> Handler:
            """Return the endpoint with a check of the token."""
            endpoint: Handler = self.endpoint

            async def guarded(request: Request) -> Response:
                tokens = serving_of(request).tokens
                name = tokens.require(request.headers.get("authorization"), scope)
                if name:
                    request_info(request).log_fields["token_name"] = name
                return await endpoint(request)

            return guarded

    return Guarded


def open_routes() -> APIRouter:
    """Return a router for routes without a token, for process monitoring."""
    return APIRouter(route_class=_Open)


def guarded_routes(scope: Scope) -> APIRouter:
    """Return a router for routes that require a token of a scope."""
    return APIRouter(
        route_class=_guarded(scope), dependencies=[Security(_BEARER)]
    )  # for the OpenAPI description


def token_name(request: Request) -> str:
    """Return the name of the token of a request; empty without one."""
    name: str = request_info(request).log_fields.get("token_name", "")
    return name
