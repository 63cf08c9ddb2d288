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

from fastapi import Depends, FastAPI, Request, Response, Security
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
    BodyLate,
    Malformed,
    ModelFailed,
    NotAuthorized,
    Overloaded,
    Refusal,
    TooLarge,
    TooLate,
    TooMany,
    UnknownModel,
    WrongInput,
    WrongMedia,
)
from sluice.serving.router import Routed, Router
from sluice.serving.settings import ServingSettings

_HANGS_AFTER = 10
"""Deadlines after which a batch that is still under way is taken to hang."""


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


def build_app(serving: Serving) -> Front:
    """Return the app, ready for an ASGI server."""
    api = FastAPI(
        title=f"Sluice: {serving.model}",
        version="1",
        description="Predictions of what is in production; see /model for what to send.",
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        lifespan=_lifespan(serving),
    )
    _add_predict(api, serving)
    _add_views(api, serving)
    _add_probes(api, serving)
    _add_errors(api, serving)
    return Front(
        api,
        max_body_bytes=serving.settings.max_body_bytes,
        metrics=serving.metrics,
        log=serving.log,
        is_draining=lambda: serving.draining,
    )


def _lifespan(serving: Serving) -> Any:
    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        serving.metrics.ready.set(1)
        following = asyncio.get_running_loop().create_task(serving.follower.run())
        yield
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await serving.router.close()

    return lifespan


def _guard(serving: Serving) -> Any:
    """Return the dependency that asks for the token."""
    bearer = HTTPBearer(auto_error=False, description="The server's token.")

    async def require(
        request: Request,
        _: Annotated[HTTPAuthorizationCredentials | None, Security(bearer)],
    ) -> None:
        if serving.token is not None:
            serving.token.require(request.headers.get("authorization"))

    return Depends(require)


def _refused(*kinds: type[Refusal]) -> dict[int | str, dict[str, Any]]:
    return {kind.status: {"model": Problem, "description": kind.__doc__} for kind in kinds}


def _json(content: BaseModel, *, status: int = 200, headers: Any = None) -> Response:
    return Response(
        content.model_dump_json(), status, headers=headers, media_type="application/json"
    )


def _add_predict(api: FastAPI, serving: Serving) -> None:
    @api.post(
        "/predict",
        response_model=Prediction,
        dependencies=[_guard(serving)],
        responses=_refused(
            Malformed,
            NotAuthorized,
            UnknownModel,
            BodyLate,
            TooLarge,
            WrongMedia,
            WrongInput,
            TooMany,
            ModelFailed,
            Overloaded,
            TooLate,
        ),
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
        notes = notes_of(request)
        with serving.admitted():
            body = await _body(request, timeout_s=serving.settings.body_timeout_s)
            asked = read_request(
                body, model=serving.model, max_windows=serving.settings.max_windows
            )
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


def _add_views(api: FastAPI, serving: Serving) -> None:
    guard = _guard(serving)

    @api.get(
        "/model",
        response_model=ModelCard,
        dependencies=[guard],
        responses=_refused(NotAuthorized),
    )
    async def model() -> Response:
        """Say what is served, and what it takes."""
        table = serving.router.table
        weights = serving.router.in_force(table.weights)
        production, challenger = table.production.deployed, table.challenger
        return _json(
            ModelCard(
                model=serving.model,
                target=production.target,
                input=production.contract,
                production=ServedVersion(
                    version=production.version, candidate=production.candidate
                ),
                challenger=None
                if challenger is None
                else ServedVersion(
                    version=challenger.deployed.version, candidate=challenger.deployed.candidate
                ),
                rollout=weights.rollout,
                epoch=weights.epoch,
                share=weights.share,
                shadow=weights.shadow,
            )
        )

    @api.get(
        "/rollout",
        response_model=RolloutCounts,
        dependencies=[guard],
        responses=_refused(NotAuthorized),
    )
    async def rollout() -> Response:
        """Say what was seen of both arms since the rollout's step began."""
        return _json(RolloutCounts(window=serving.router.window()))

    @api.get(
        "/metrics",
        response_class=PlainTextResponse,
        dependencies=[guard],
        responses=_refused(NotAuthorized),
    )
    async def metrics() -> Response:
        """Tell Prometheus."""
        return Response(serving.metrics.text(), media_type="text/plain; version=0.0.4")


def _add_probes(api: FastAPI, serving: Serving) -> None:
    @api.get("/healthz", response_model=Alive, responses={503: {"model": Alive}})
    async def healthz() -> Response:
        """Say whether the process should go on living."""
        busy_s = serving.router.table.production.busy_s(time.monotonic())
        hangs = busy_s > _HANGS_AFTER * serving.settings.deadline_s
        reason = f"production has computed one batch for {busy_s:.1f} s" if hangs else ""
        return _json(Alive(alive=not hangs, reason=reason), status=503 if hangs else 200)

    @api.get("/readyz", response_model=Readiness, responses={503: {"model": Readiness}})
    async def readyz() -> Response:
        """Say whether requests should be sent here."""
        found = Readiness(
            ready=not serving.draining,
            state="draining" if serving.draining else "serving",
            problems=serving.follower.problems,
        )
        return _json(found, status=200 if found.ready else 503)


def _add_errors(api: FastAPI, serving: Serving) -> None:
    @api.exception_handler(Refusal)
    async def refused(request: Request, error: Refusal) -> Response:
        notes = notes_of(request)
        notes.facts["refused"] = error.kind
        if isinstance(error, ModelFailed):
            serving.log.error("model failed", trace=notes.trace, **error.place)
        headers = {}
        if isinstance(error, NotAuthorized):
            headers["www-authenticate"] = "Bearer"
        if error.retry_after_s is not None:
            headers["retry-after"] = str(error.retry_after_s)
        if isinstance(error, TooLarge | BodyLate):
            headers["connection"] = "close"
        return _json(Problem.of(error, trace=notes.trace), status=error.status, headers=headers)

    @api.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        problem = Problem(
            kind="unknown_route",
            what=f"There is no such route here ({error.detail}).",
            why="",
            do="GET /openapi.json lists the routes.",
            trace=notes_of(request).trace,
        )
        return _json(problem, status=error.status_code, headers=error.headers)

    @api.exception_handler(Exception)
    async def broken(request: Request, _: Exception) -> Response:
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
