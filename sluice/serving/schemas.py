"""Schemas of the responses, as described in /openapi.json."""

from collections.abc import Mapping
from typing import Any, Literal

from fastapi import Response
from pydantic import Field

from sluice.base.settings import Record
from sluice.rollout.observations import TrafficCounts
from sluice.rollout.samples import ArmName
from sluice.serving.contract import ModelContract, OutputContract
from sluice.serving.http_errors import HttpError


class PredictionResponse(Record):
    """Response of ``POST /predict``."""

    outputs: list[list[float]] = Field(
        description="One row for each element, such as a window: values in the unit of the target "
        "for regression, or one logit per class for classification, in the order of the classes "
        "that GET /model lists."
    )
    model: str
    version: int = Field(description="Version that made the prediction.")
    candidate: str = Field(description="Candidate digest of this version.")
    arm: ArmName
    fallback: bool = Field(description="Whether production answered in place of the challenger.")
    rollout: str | None = Field(description="Id of the rollout in progress.")
    epoch: int = Field(description="Epoch of the traffic split that routed the request.")
    trace: str = Field(description="Trace id of this request, also in the server's log.")


class ErrorResponse(Record):
    """Response to a request that was not answered: what happened, why, and what to do."""

    kind: str
    what: str
    why: str
    do: str
    trace: str

    @classmethod
    def of(cls, error: HttpError, *, trace: str) -> "ErrorResponse":
        """Return the response for an error."""
        return cls(kind=error.kind, what=error.what, why=error.cause, do=error.fix, trace=trace)


class ServedVersion(Record):
    """Version that one arm serves."""

    version: int
    candidate: str


class ModelDescription(Record):
    """Response of ``GET /model``: the served versions, their input and their output."""

    model: str
    target: str = Field(description="Name of the predicted column.")
    input: ModelContract
    output: OutputContract
    production: ServedVersion
    challenger: ServedVersion | None = Field(description="null while production serves alone.")
    rollout: str | None = Field(description="Id of the rollout in progress.")
    epoch: int = Field(description="Epoch of the traffic split.")
    share: float = Field(description="Share of the users that the challenger answers.")
    shadow: bool = Field(description="Whether shadow requests are sent to one of the arms.")


class RolloutCounts(Record):
    """Response of ``GET /rollout``."""

    window: TrafficCounts | None = Field(
        description="Counts since the rollout step began; null without a rollout."
    )


class Liveness(Record):
    """Response of ``GET /healthz``: status 503 if only a restart helps."""

    alive: bool
    reason: str


ServerPhase = Literal["serving", "degraded", "draining"]


class Readiness(Record):
    """Response of ``GET /readyz``: status 503 if no request should be sent to this server."""

    ready: bool
    state: ServerPhase = Field(
        description="Phase of the server. degraded: the server is ready, but registry entries "
        "about the served versions contradict each other, so the last consistent version serves."
    )
    problems: list[str] = Field(description="Kinds of the current problems; see /problems.")


class ProblemList(Record):
    """Response of ``GET /problems``."""

    problems: list[str] = Field(description="Current problems, one sentence each.")


def error_responses(*errors: type[HttpError]) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI description of the responses to these errors."""
    return {
        error.status: {"model": ErrorResponse, "description": error.__doc__} for error in errors
    }


def json_response(
    content: Record, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a record as a JSON response."""
    return Response(
        content.model_dump_json(), status, headers=headers, media_type="application/json"
    )
