"""The app: its routes, and the conversion of errors to responses.

Liveness, readiness and the OpenAPI description need no token. Every other route needs a token with
the route's scope.
"""

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from sluice.serving import endpoints, predict_endpoint, rollback_webhook
from sluice.serving.contract import InputContract
from sluice.serving.hosts import TrustedHosts
from sluice.serving.http_errors import (
    BodyTimeout,
    HttpError,
    ModelFailed,
    PayloadTooLarge,
    Unauthorized,
)
from sluice.serving.middleware import RequestMiddleware, request_info
from sluice.serving.schemas import ErrorResponse, json_response
from sluice.serving.state import Serving, serving_of
from sluice.serving.token_rotation import follow_tokens


def build_app(serving: Serving, hosts: TrustedHosts) -> RequestMiddleware:
    """Return the app, ready for an ASGI server.

    Args:
        serving: State of the server.
        hosts: Host names that requests may use.
    """
    api = _Api(
        title=f"Sluice: {serving.model}",
        version="1",
        description="Predictions of the production model; see /model for the input.",
        docs_url=None,  # the documentation page loads scripts from other hosts
        redoc_url=None,
        redirect_slashes=False,  # a redirect would use the name in the Host header
        lifespan=_lifespan,
    )
    # Endpoints read the state from this attribute and not from a closure. FastAPI keeps every
    # function of a route for the life of the process, and a closure would keep the state alive.
    api.state.serving = serving
    for routes in (
        predict_endpoint.ROUTES,
        endpoints.MODEL_ROUTES,
        endpoints.METRICS_ROUTES,
        endpoints.ADMIN_ROUTES,
        endpoints.OPEN_ROUTES,
    ):  # FastAPI searches routes in this order
        api.include_router(routes)
    if serving.webhook is not None:
        api.include_router(rollback_webhook.ROUTES)
    api.add_exception_handler(HttpError, _http_error)
    api.add_exception_handler(HTTPException, _routing_error)
    api.add_exception_handler(Exception, _internal_error)
    return RequestMiddleware(
        _PredictFastPath(api),
        max_body_bytes=serving.settings.max_body_bytes,
        hosts=hosts,
        metrics=serving.metrics,
        log=serving.log,
        is_draining=lambda: serving.is_draining,
    )


class _Api(FastAPI):
    """FastAPI app whose OpenAPI schema of /predict follows the codec of the production version."""

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI schema. The version in production decides the body of /predict."""
        schema = super().openapi()
        serving: Serving = self.state.serving
        deployed = serving.router.table.production.deployed
        if isinstance(deployed.contract, InputContract):
            return schema
        schema = copy.deepcopy(schema)  # FastAPI caches the original
        content = schema["paths"]["/predict"]["post"]["requestBody"]["content"]
        content["application/json"]["schema"] = deployed.contract.body
        return schema


class _PredictFastPath:
    """Calls the prediction endpoint directly, without the routing and middleware of FastAPI.

    Predictions need neither, and both together took a third of the event loop's time.
    """

    def __init__(self, api: FastAPI) -> None:
        self._api = api
        (route,) = predict_endpoint.ROUTES.routes
        assert isinstance(route, APIRoute)
        self._path = route.path
        self._predict = route.get_route_handler()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_prediction = scope["type"] == "http" and scope["path"] == self._path
        if not is_prediction or scope["method"] != "POST":
            await self._api(scope, receive, send)
            return
        scope["app"] = self._api
        request = Request(scope, receive, send)
        try:
            response = await self._predict(request)
        except HttpError as http_error:
            response = await _http_error(request, http_error)
        except Exception as error:  # the server logs it, as for every other route
            response = await _internal_error(request, error)
            await response(scope, receive, send)
            raise
        await response(scope, receive, send)


@contextlib.asynccontextmanager
async def _lifespan(api: FastAPI) -> AsyncIterator[None]:
    serving: Serving = api.state.serving
    serving.metrics.ready.set(1)
    loop, reporter = asyncio.get_running_loop(), serving.reporter
    tasks = [loop.create_task(serving.split_sync.run())]
    if reporter is not None:
        tasks.append(loop.create_task(reporter.run()))
    if serving.token_file is not None:
        tasks.append(loop.create_task(follow_tokens(serving, serving.token_file)))
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await serving.router.close()
    if reporter is not None:
        await reporter.report(is_final=True)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpError)
    info = request_info(request)
    info.log_fields["refused"] = error.kind
    if isinstance(error, ModelFailed):
        serving_of(request).log.error("model failed", trace=info.trace_id, **error.error_site)
    headers = {}
    if isinstance(error, Unauthorized):
        headers["www-authenticate"] = "Bearer"
    if error.retry_after_s is not None:
        headers["retry-after"] = str(error.retry_after_s)
    if isinstance(error, PayloadTooLarge | BodyTimeout):
        headers["connection"] = "close"
    return json_response(
        ErrorResponse.of(error, trace=info.trace_id), status=error.status, headers=headers
    )


async def _routing_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    allowed_methods = (error.headers or {}).get("Allow")
    content = ErrorResponse(
        kind="unknown_route" if allowed_methods is None else "wrong_method",
        what=f"This route does not exist ({error.detail})."
        if allowed_methods is None
        else f"This route accepts {allowed_methods}, got {request.method}.",
        why="",
        do="GET /openapi.json lists the routes.",
        trace=request_info(request).trace_id,
    )
    return json_response(content, status=error.status_code, headers=error.headers)


async def _internal_error(request: Request, _: Exception) -> Response:
    info = request_info(request)
    # log.JsonLogHandler logs the error itself.
    info.log_fields["refused"] = "internal_error"
    content = ErrorResponse(
        kind="internal_error",
        what="Internal error of the server.",
        why="",
        do="Report this trace id to the operator of the server; the server log contains the error.",
        trace=info.trace_id,
    )
    return json_response(content, status=500)
