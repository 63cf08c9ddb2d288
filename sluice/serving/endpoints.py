"""Endpoints about the server: its versions, counts, problems and health."""

import time

from fastapi import Request, Response
from fastapi.responses import PlainTextResponse

from sluice.serving.http_errors import Forbidden, Unauthorized
from sluice.serving.routes import open_routes, token_routes
from sluice.serving.schemas import (
    ErrorResponse,
    Liveness,
    ModelDescription,
    ProblemList,
    Readiness,
    RolloutCounts,
    ServedVersion,
    ServerPhase,
    error_responses,
    json_response,
)
from sluice.serving.server_metrics import PROBLEM_KINDS
from sluice.serving.state import serving_of

MODEL_ROUTES = token_routes("predict")
METRICS_ROUTES = token_routes("metrics")
ADMIN_ROUTES = token_routes("admin")
OPEN_ROUTES = open_routes()


@MODEL_ROUTES.get(
    "/model", response_model=ModelDescription, responses=error_responses(Unauthorized, Forbidden)
)
async def model(request: Request) -> Response:
    """Describe the served versions, their input and their output."""
    serving = serving_of(request)
    table = serving.router.table
    split = serving.router.effective_split(table.split)
    production = table.production.deployed
    challenger = None if table.challenger is None else table.challenger.deployed
    description = ModelDescription(
        model=serving.model,
        target=production.target,
        input=production.contract,
        output=production.output,
        production=ServedVersion(version=production.version, candidate=production.candidate),
        challenger=None
        if challenger is None
        else ServedVersion(version=challenger.version, candidate=challenger.candidate),
        rollout=split.rollout,
        epoch=split.epoch,
        share=split.share,
        shadow=split.shadow,
    )
    return json_response(description)


@ADMIN_ROUTES.get(
    "/rollout", response_model=RolloutCounts, responses=error_responses(Unauthorized, Forbidden)
)
async def rollout(request: Request) -> Response:
    """Return the counts of both arms since the current rollout step began."""
    return json_response(RolloutCounts(window=serving_of(request).router.traffic_counts()))


@ADMIN_ROUTES.get(
    "/problems", response_model=ProblemList, responses=error_responses(Unauthorized, Forbidden)
)
async def problems(request: Request) -> Response:
    """Return the current problems as sentences, which contain paths, host names and digests."""
    return json_response(ProblemList(problems=serving_of(request).split_sync.problems))


@METRICS_ROUTES.get(
    "/metrics",
    response_class=PlainTextResponse,
    # The errors are described here, because FastAPI would describe them as plain text.
    responses={
        error.status: {
            "description": error.__doc__,
            "content": {"application/json": {"schema": ErrorResponse.model_json_schema()}},
        }
        for error in (Unauthorized, Forbidden)
    },
)
async def metrics(request: Request) -> Response:
    """Return the metrics in Prometheus' text format."""
    return Response(serving_of(request).metrics.text(), media_type="text/plain; version=0.0.4")


@OPEN_ROUTES.get("/healthz", response_model=Liveness, responses={503: {"model": Liveness}})
async def healthz(request: Request) -> Response:
    """Return whether the process is alive. The status is 503 if only a restart helps."""
    hang_duration_s = serving_of(request).hang_duration_s(time.monotonic())
    reason = (
        f"production has computed one batch for {hang_duration_s:.1f} s" if hang_duration_s else ""
    )
    return json_response(
        Liveness(alive=not hang_duration_s, reason=reason), status=503 if hang_duration_s else 200
    )


@OPEN_ROUTES.get("/readyz", response_model=Readiness, responses={503: {"model": Readiness}})
async def readyz(request: Request) -> Response:
    """Return whether this server is ready for requests."""
    serving = serving_of(request)
    # An inconsistent registry does not make the server unready: it continues to serve the last
    # consistent version, and a failing /readyz would turn one edited row into an outage.
    phase: ServerPhase = "degraded" if serving.split_sync.has_problem("registry") else "serving"
    readiness = Readiness(
        ready=not serving.is_draining and not serving.hang_duration_s(time.monotonic()),
        state="draining" if serving.is_draining else phase,
        problems=[kind for kind in PROBLEM_KINDS if serving.split_sync.has_problem(kind)],
    )
    return json_response(readiness, status=200 if readiness.ready else 503)
