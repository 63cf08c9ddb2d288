"""The app: its routes, and how errors become answers.

What needs a token: everything that tells about the model, each route with a scope of its own. What
does not: whether the server lives and is ready, and the description of its own form.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from sluice.serving import hook, predicting, views
from sluice.serving.answers import Problem, json_answer
from sluice.serving.front import Front, notes_of
from sluice.serving.hosts import TrustedHosts
from sluice.serving.refusals import BodyLate, ModelFailed, NotAuthorized, Refusal, TooLarge
from sluice.serving.state import Serving, serving_of
from sluice.serving.token_rotation import follow_tokens


def build_app(serving: Serving, hosts: TrustedHosts) -> Front:
    """Return the app, ready for an ASGI server.

    Args:
        serving: What it answers from.
        hosts: Names that requests may call it by.
    """
    api = FastAPI(
        title=f"Sluice: {serving.model}",
        version="1",
        description="Predictions of what is in production; see /model for what to send.",
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # a redirect would go to whatever the Host header names
        lifespan=_lifespan,
    )
    # Not in closures: FastAPI keeps every function of a route for the life of the process.
    api.state.serving = serving
    for routes in (
        predicting.GUARDED,
        views.MODEL,
        views.METRICS,
        views.ADMIN,
        views.OPEN,
    ):  # looked through in this order
        api.include_router(routes)
    if serving.hook is not None:
        api.include_router(hook.ROUTES)
    api.add_exception_handler(Refusal, _refused)
    api.add_exception_handler(HTTPException, _unknown_route)
    api.add_exception_handler(Exception, _broken)
    return Front(
        _Shortcut(api),
        max_body_bytes=serving.settings.max_body_bytes,
        hosts=hosts,
        metrics=serving.metrics,
        log=serving.log,
        is_draining=lambda: serving.draining,
    )


class _Shortcut:
    """The app, whose predictions do not go through the routing and the middlewares of FastAPI.

    Nothing there is of use to them, and a third of the event loop's time went there.
    """

    def __init__(self, api: FastAPI) -> None:
        self._api = api
        (route,) = predicting.GUARDED.routes
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
        except Refusal as refusal:
            response = await _refused(request, refusal)
        except Exception as error:  # the server logs it, as of every other route
            response = await _broken(request, error)
            await response(scope, receive, send)
            raise
        await response(scope, receive, send)


@contextlib.asynccontextmanager
async def _lifespan(api: FastAPI) -> AsyncIterator[None]:
    serving: Serving = api.state.serving
    serving.metrics.ready.set(1)
    loop, reporter = asyncio.get_running_loop(), serving.reporter
    tasks = [loop.create_task(serving.follower.run())]
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
        await reporter.report(draining=True)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    notes = notes_of(request)
    notes.facts["refused"] = error.kind
    if isinstance(error, ModelFailed):
        serving_of(request).log.error("model failed", trace=notes.trace, **error.place)
    headers = {}
    if isinstance(error, NotAuthorized):
        headers["www-authenticate"] = "Bearer"
    if error.retry_after_s is not None:
        headers["retry-after"] = str(error.retry_after_s)
    if isinstance(error, TooLarge | BodyLate):
        headers["connection"] = "close"
    return json_answer(Problem.of(error, trace=notes.trace), status=error.status, headers=headers)


async def _unknown_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    allowed = (error.headers or {}).get("Allow")
    problem = Problem(
        kind="unknown_route" if allowed is None else "wrong_method",
        what=f"There is no such route here ({error.detail})."
        if allowed is None
        else f"This route takes {allowed}, got {request.method}.",
        why="",
        do="GET /openapi.json lists the routes.",
        trace=notes_of(request).trace,
    )
    return json_answer(problem, status=error.status_code, headers=error.headers)


async def _broken(request: Request, _: Exception) -> Response:
    notes = notes_of(request)
    notes.facts["refused"] = "broken"  # the server logs the error itself, see log.ToJson
    problem = Problem(
        kind="broken",
        what="Something broke in the server itself.",
        why="",
        do="Report it with the trace id; the log has the error.",
        trace=notes.trace,
    )
    return json_answer(problem, status=500)
