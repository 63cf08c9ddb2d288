"""Routes whose endpoints take the request and return the response, and nothing in between.

FastAPI solves dependencies and parses bodies for each request; here there are none to solve, and a
quarter of the router's time went there. It still describes the routes in /openapi.json.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request, Response, Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer

from sluice.serving.state import serving_of

_BEARER = HTTPBearer(auto_error=False, description="The server's token.")

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class _Open(APIRoute):
    """Answers everybody."""

    def get_route_handler(self) -> Handler:
        """Return the endpoint itself."""
        return self.endpoint


class _Guarded(APIRoute):
    """Asks for the token first."""

    def get_route_handler(self) -> Handler:
        """Return the endpoint behind the token."""
        endpoint: Handler = self.endpoint

        async def guarded(request: Request) -> Response:
            token = serving_of(request).token
            if token is not None:
                token.require(request.headers.get("authorization"))
            return await endpoint(request)

        return guarded


def open_routes() -> APIRouter:
    """Return a router for routes that whoever watches over a process needs, without a token."""
    return APIRouter(route_class=_Open)


def guarded_routes() -> APIRouter:
    """Return a router for routes that tell about the model; each asks for the token."""
    return APIRouter(route_class=_Guarded, dependencies=[Security(_BEARER)])  # as described
