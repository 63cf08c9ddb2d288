"""The app: its routes, and how errors become answers.

What needs the token: everything that tells about the model. What does not: whether the server lives
and is ready, and the description of its own form.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response, Security
from fastapi.responses import PlainTextResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from sluice.serving.answers import (
    Alive,
    ModelCard,
    Prediction,
    Problem,
    Readiness,
    RolloutCounts,
    ServedVersion,
)
from sluice.serving.contract import PredictRequest, read_request
from sluice.serving.following import Follower
from sluice.serving.front import Front, notes_of
from sluice.serving.limits import RateLimit, Token
from sluice.serving.metrics import Metrics
from sluice.serving.refusals import (
    REFUSALS,
    BodyLate,
    Malformed,
    ModelFailed,
    NotAuthorized,
    Overloaded,
    Refusal,
    TooLarge,
    WrongMedia,
)
from sluice.serving.router import Routed, Router
from sluice.serving.settings import ServingSettings

_HANGS_AFTER = 10
"""Deadlines after which a batch that is still under way is taken to hang."""

_BEARER = HTTPBearer(auto_error=False, description="The server's token.")
_GUARDED = APIRouter()
_OPEN = APIRouter()


def _described(*kinds: type[Refusal]) -> dict[int | str, dict[str, Any]]:
    return {kind.status: {"model": Problem, "description": kind.__doc__} for kind in kinds}


@dataclass(slots=True, eq=False)
class Serving:
    """Everything that one app answers from."""

    model: str
    router: Router
    follower: Follower
    metrics: Metrics
    settings: ServingSettings
    token: Token | None
    log: Any
    draining: bool = False
    limit: RateLimit = field(init=False)
    predicting: int = 0

    def __post_init__(self) -> None:
        self.limit = RateLimit(
            per_s=self.settings.requests_per_s, burst=self.settings.burst_requests
        )

    def drain(self) -> None:
        """Want no more requests; the server ends once the notice was given."""
        self.draining = True
        self.metrics.ready.set(0)

    @contextlib.contextmanager
    def admitted(self) -> Iterator[None]:
        """Count a prediction as under way.

        Raises:
            TooMany: They come too fast.
            Overloaded: Too many are under way.
        """
        self.limit.require(time.monotonic())
        if self.predicting >= self.settings.max_in_flight:
            raise Overloaded(
                f"At most {self.settings.max_in_flight} predictions are computed at once, and so "
                "many are under way.",
                fix="Try again in a second, with fewer at once.",
            )
        self.predicting += 1
        try:
            yield
        finally:
            self.predicting -= 1


async def _require_token(
    request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)]
) -> None:
    token = _serving(request).token
    if token is not None:
        token.require(request.headers.get("authorization"))


def build_app(serving: Serving) -> Front:
    """Return the app, ready for an ASGI server."""
    api = FastAPI(
        title=f"Sluice: {serving.model}",
        version="1",
        description="Predictions of what is in production; see /model for what to send.",
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        lifespan=_lifespan,
    )
    # Not in closures: FastAPI keeps every function of a route for the life of the process.
    api.state.serving = serving
    api.include_router(_OPEN)
    api.include_router(_GUARDED, dependencies=[Depends(_require_token)])
    api.add_exception_handler(Refusal, _refused)
    api.add_exception_handler(HTTPException, _unknown_route)
    api.add_exception_handler(Exception, _broken)
    return Front(
        api,
        max_body_bytes=serving.settings.max_body_bytes,
        metrics=serving.metrics,
        log=serving.log,
        is_draining=lambda: serving.draining,
    )


def _serving(request: Request) -> Serving:
    found: Serving = request.app.state.serving
    return found


@contextlib.asynccontextmanager
async def _lifespan(api: FastAPI) -> AsyncIterator[None]:
    serving: Serving = api.state.serving
    serving.metrics.ready.set(1)
    following = asyncio.get_running_loop().create_task(serving.follower.run())
    yield
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await serving.router.close()


def _json(content: BaseModel, *, status: int = 200, headers: Any = None) -> Response:
    return Response(
        content.model_dump_json(), status, headers=headers, media_type="application/json"
    )


@_GUARDED.post(
    "/predict",
    response_model=Prediction,
    responses=_described(*REFUSALS),
    # The body is read by hand: its size is checked first, and a bad one is told our way.
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": PredictRequest.model_json_schema()}},
        }
    },
)
async def predict(request: Request) -> Response:
    """Predict from one or many windows of feature rows."""
    serving, notes = _serving(request), notes_of(request)
    with serving.admitted():
        body = await _body(request, timeout_s=serving.settings.body_timeout_s)
        asked = read_request(body, model=serving.model, max_windows=serving.settings.max_windows)
        notes.facts["windows"] = len(asked.windows)
        routed = await serving.router.answer(
            asked,
            user=asked.user or notes.trace,
            deadline=time.monotonic() + serving.settings.deadline_s,
        )
    tags = _tags(routed)
    notes.facts.update(tags)
    if routed.challenger_fault is not None:
        notes.facts["challenger_fault"] = routed.challenger_fault
        notes.facts["challenger_error"] = routed.challenger_error
    answer = Prediction(
        outputs=routed.output.tolist(),
        model=serving.model,
        version=routed.version,
        candidate=routed.candidate,
        arm=routed.arm,
        fallback=routed.challenger_fault is not None,
        rollout=routed.weights.rollout,
        epoch=routed.weights.epoch,
        trace=notes.trace,
    )
    return _json(answer, headers={f"x-sluice-{key}": str(value) for key, value in tags.items()})


def _tags(routed: Routed) -> dict[str, Any]:
    tags: dict[str, Any] = {"version": routed.version, "arm": routed.arm}
    if routed.weights.rollout is not None:
        tags["rollout"] = routed.weights.rollout
    return tags


async def _body(request: Request, *, timeout_s: float) -> bytes:
    declared = request.headers.get("content-type", "application/json")
    if declared.partition(";")[0].strip().lower() != "application/json":
        raise WrongMedia(
            "The body must be declared as application/json, and is as something else.",
            fix="Send the header 'Content-Type: application/json'.",
        )
    try:
        async with asyncio.timeout(timeout_s):
            return await request.body()
    except ClientDisconnect:
        raise Malformed("The connection ended within the body.", fix="Send it whole.") from None
    except TimeoutError:
        raise BodyLate(
            f"The body must arrive within {timeout_s:g} s, and did not.",
            fix="Send it at once, or send fewer windows.",
        ) from None


@_GUARDED.get("/model", response_model=ModelCard, responses=_described(NotAuthorized))
async def model(request: Request) -> Response:
    """Say what is served, and what it takes."""
    serving = _serving(request)
    table = serving.router.table
    weights = serving.router.in_force(table.weights)
    production = table.production.deployed
    challenger = None if table.challenger is None else table.challenger.deployed
    card = ModelCard(
        model=serving.model,
        target=production.target,
        input=production.contract,
        production=ServedVersion(version=production.version, candidate=production.candidate),
        challenger=None
        if challenger is None
        else ServedVersion(version=challenger.version, candidate=challenger.candidate),
        rollout=weights.rollout,
        epoch=weights.epoch,
        share=weights.share,
        shadow=weights.shadow,
    )
    return _json(card)


@_GUARDED.get("/rollout", response_model=RolloutCounts, responses=_described(NotAuthorized))
async def rollout(request: Request) -> Response:
    """Say what was seen of both arms since the rollout's step began."""
    return _json(RolloutCounts(window=_serving(request).router.window()))


@_GUARDED.get("/metrics", response_class=PlainTextResponse, responses=_described(NotAuthorized))
async def metrics(request: Request) -> Response:
    """Tell Prometheus."""
    return Response(_serving(request).metrics.text(), media_type="text/plain; version=0.0.4")


@_OPEN.get("/healthz", response_model=Alive, responses={503: {"model": Alive}})
async def healthz(request: Request) -> Response:
    """Say whether the process should go on living."""
    serving = _serving(request)
    busy_s = serving.router.table.production.busy_s(time.monotonic())
    hangs = busy_s > _HANGS_AFTER * serving.settings.deadline_s
    reason = f"production has computed one batch for {busy_s:.1f} s" if hangs else ""
    return _json(Alive(alive=not hangs, reason=reason), status=503 if hangs else 200)


@_OPEN.get("/readyz", response_model=Readiness, responses={503: {"model": Readiness}})
async def readyz(request: Request) -> Response:
    """Say whether requests should be sent here."""
    serving = _serving(request)
    found = Readiness(
        ready=not serving.draining,
        state="draining" if serving.draining else "serving",
        problems=serving.follower.problems,
    )
    return _json(found, status=200 if found.ready else 503)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    notes = notes_of(request)
    notes.facts["refused"] = error.kind
    if isinstance(error, ModelFailed):
        _serving(request).log.error("model failed", trace=notes.trace, **error.place)
    headers = {}
    if isinstance(error, NotAuthorized):
        headers["www-authenticate"] = "Bearer"
    if error.retry_after_s is not None:
        headers["retry-after"] = str(error.retry_after_s)
    if isinstance(error, TooLarge | BodyLate):
        headers["connection"] = "close"
    return _json(Problem.of(error, trace=notes.trace), status=error.status, headers=headers)


async def _unknown_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    problem = Problem(
        kind="unknown_route",
        what=f"There is no such route here ({error.detail}).",
        why="",
        do="GET /openapi.json lists the routes.",
        trace=notes_of(request).trace,
    )
    return _json(problem, status=error.status_code, headers=error.headers)


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
    return _json(problem, status=500)
