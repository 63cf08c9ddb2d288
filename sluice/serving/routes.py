"""Routes that call their endpoint with the request, without the dependency injection of FastAPI.

For each request FastAPI resolves dependencies and parses the body. These routes need neither, and
both together took a quarter of the time of a request. FastAPI still describes the routes in
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


class _OpenRoute(APIRoute):
    """Route that requires no token."""

    def get_route_handler(self) -> Handler:
        """Return the endpoint itself."""
        return self.endpoint


def _token_route_class(scope: Scope) -> type[APIRoute]:
    class TokenRoute(APIRoute):
        """Route that requires a token of the scope."""

        def get_route_handler(self) -> Handler:
            """Return a function that checks the token and then calls the endpoint."""
            endpoint: Handler = self.endpoint

            async def check_and_call(request: Request) -> Response:
                tokens = serving_of(request).tokens
                name = tokens.require(request.headers.get("authorization"), scope)
                if name:
                    request_info(request).log_fields["token_name"] = name
                return await endpoint(request)

            return check_and_call

    return TokenRoute


def open_routes() -> APIRouter:
    """Return a router for routes that require no token, such as health checks."""
    return APIRouter(route_class=_OpenRoute)


def token_routes(scope: Scope) -> APIRouter:
    """Return a router for routes that require a token of a scope."""
    return APIRouter(
        route_class=_token_route_class(scope),
        dependencies=[Security(_BEARER)],  # only for the OpenAPI description
    )


def token_name(request: Request) -> str:
    """Return the name of the token of a request; empty if the route needs none."""
    name: str = request_info(request).log_fields.get("token_name", "")
    return name
