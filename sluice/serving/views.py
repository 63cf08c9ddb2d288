"""The routes that tell about the server: what it serves, what it counted, whether it lives."""

import time

from fastapi import Request, Response
from fastapi.responses import PlainTextResponse

from sluice.serving.answers import (
    Alive,
    ModelCard,
    Problem,
    Problems,
    Readiness,
    RolloutCounts,
    ServedVersion,
    ServerPhase,
    described,
    json_answer,
)
from sluice.serving.refusals import NotAllowed, NotAuthorized
from sluice.serving.routes import guarded_routes, open_routes
from sluice.serving.server_metrics import PROBLEMS
from sluice.serving.state import serving_of

MODEL = guarded_routes("predict")
METRICS = guarded_routes("metrics")
ADMIN = guarded_routes("admin")
OPEN = open_routes()


@MODEL.get("/model", response_model=ModelCard, responses=described(NotAuthorized, NotAllowed))
async def model(request: Request) -> Response:
    """Say what is served, and what it takes."""
    serving = serving_of(request)
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
    return json_answer(card)


@ADMIN.get("/rollout", response_model=RolloutCounts, responses=described(NotAuthorized, NotAllowed))
async def rollout(request: Request) -> Response:
    """Say what was seen of both arms since the rollout's step began."""
    return json_answer(RolloutCounts(window=serving_of(request).router.window()))


@ADMIN.get("/problems", response_model=Problems, responses=described(NotAuthorized, NotAllowed))
async def problems(request: Request) -> Response:
    """Say in sentences what is not as it should be; they name paths, hosts and candidates."""
    return json_answer(Problems(problems=serving_of(request).follower.problems))


@METRICS.get(
    "/metrics",
    response_class=PlainTextResponse,
    # Spelt out: FastAPI would describe the refusals as plain text, too.
    responses={
        refusal.status: {
            "description": refusal.__doc__,
            "content": {"application/json": {"schema": Problem.model_json_schema()}},
        }
        for refusal in (NotAuthorized, NotAllowed)
    },
)
async def metrics(request: Request) -> Response:
    """Tell Prometheus."""
    return Response(serving_of(request).metrics.text(), media_type="text/plain; version=0.0.4")


@OPEN.get("/healthz", response_model=Alive, responses={503: {"model": Alive}})
async def healthz(request: Request) -> Response:
    """Say whether the process should go on living."""
    hangs_s = serving_of(request).hangs_s(time.monotonic())
    reason = f"production has computed one batch for {hangs_s:.1f} s" if hangs_s else ""
    return json_answer(Alive(alive=not hangs_s, reason=reason), status=503 if hangs_s else 200)


@OPEN.get("/readyz", response_model=Readiness, responses={503: {"model": Readiness}})
async def readyz(request: Request) -> Response:
    """Say whether requests should be sent here."""
    serving = serving_of(request)
    # A registry that contradicts itself is no reason to send requests elsewhere: what serves is the
    # last version that it agreed about, and a refusal would turn one edited row into an outage.
    state: ServerPhase = "degraded" if serving.follower.has_problem("registry") else "serving"
    found = Readiness(
        ready=not serving.draining and not serving.hangs_s(time.monotonic()),
        state="draining" if serving.draining else state,
        problems=[kind for kind in PROBLEMS if serving.follower.has_problem(kind)],
    )
    return json_answer(found, status=200 if found.ready else 503)
