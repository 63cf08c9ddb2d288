"""Routes whose endpoints take the request and return the response, and nothing in between.

FastAPI solves dependencies and parses bodies for each request; here there are none to solve, and a
quarter of the router's time went there. It still describes the routes in /openapi.json.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request, Response, Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer

from sluice.serving.front import notes_of
from sluice.serving.state import serving_of
from sluice.serving.tokens import Scope

_BEARER = HTTPBearer(auto_error=False, description="A token of the server.")

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class _Open(APIRoute):
    """Answers everybody."""

    def get_route_handler(self) -> Handler:
        """Return the endpoint itself."""
        return self.endpoint


def _guarded(scope: Scope) -> type[APIRoute]:
    class Guarded(APIRoute):
        """Asks for a token of the scope first."""

        def get_route_handler(self) -> Handler:
            """Return the endpoint behind the token."""
            endpoint: Handler = self.endpoint

            async def guarded(request: Request) -> Response:
                tokens = serving_of(request).tokens
                name = tokens.require(request.headers.get("authorization"), scope)
                if name:
                    notes_of(request).facts["token_name"] = name
                return await endpoint(request)

            return guarded

    return Guarded


def open_routes() -> APIRouter:
    """Return a router for routes that whoever watches over a process needs, without a token."""
    return APIRouter(route_class=_Open)


def guarded_routes(scope: Scope) -> APIRouter:
    """Return a router for routes that each ask for a token of a scope."""
    return APIRouter(route_class=_guarded(scope), dependencies=[Security(_BEARER)])  # as described


def token_name(request: Request) -> str:
    """Return the name of the token that a guarded route was asked with; "" without one."""
    name: str = notes_of(request).facts.get("token_name", "")
    return name
