"""What the app says, as it stands in its own description."""

from collections.abc import Mapping
from typing import Any, Literal

from fastapi import Response
from pydantic import Field

from sluice.base.settings import Record
from sluice.rollout.observations import Window
from sluice.rollout.samples import ArmName
from sluice.serving.contract import InputContract
from sluice.serving.refusals import Refusal


class Prediction(Record):
    """Answer of ``POST /predict``."""

    outputs: list[list[float]] = Field(
        description="One row for each window: numbers in target units, or one logit per class."
    )
    model: str
    version: int = Field(description="Of the arm that answered.")
    candidate: str = Field(description="Digest of the arm that answered.")
    arm: ArmName
    fallback: bool = Field(description="Production answered in the challenger's place.")
    rollout: str | None = Field(description="Id of the rollout under way.")
    epoch: int = Field(description="Epoch of the weights that routed the request.")
    trace: str = Field(description="Names this request in the server's log.")


class Problem(Record):
    """Why there is no answer."""

    kind: str
    what: str
    why: str
    do: str
    trace: str

    @classmethod
    def of(cls, refusal: Refusal, *, trace: str) -> "Problem":
        """Return what a refusal says."""
        return cls(
            kind=refusal.kind, what=refusal.what, why=refusal.cause, do=refusal.fix, trace=trace
        )


class ServedVersion(Record):
    """One arm."""

    version: int
    candidate: str


class ModelCard(Record):
    """Answer of ``GET /model``: what is served, and what it takes."""

    model: str
    target: str
    input: InputContract
    production: ServedVersion
    challenger: ServedVersion | None
    rollout: str | None
    epoch: int
    share: float
    shadow: bool


class RolloutCounts(Record):
    """Answer of ``GET /rollout``."""

    window: Window | None = Field(description="Counts since the step began; null without one.")


class Alive(Record):
    """Answer of ``GET /healthz``: 503 when only a restart helps."""

    alive: bool
    reason: str


ServerPhase = Literal["serving", "degraded", "draining"]


class Readiness(Record):
    """Answer of ``GET /readyz``: 503 when no request should be sent here."""

    ready: bool
    state: ServerPhase = Field(
        description="degraded: ready, and the registry contradicts itself about what to serve, so "
        "that the last version that it agreed about serves."
    )
    problems: list[str] = Field(
        description="Kinds of what is not as it should be, though it serves; see /problems."
    )


class Problems(Record):
    """Answer of ``GET /problems``."""

    problems: list[str] = Field(description="A sentence for each kind of /readyz.")


def described(*kinds: type[Refusal]) -> dict[int | str, dict[str, Any]]:
    """Return how refusals stand in the app's description."""
    return {kind.status: {"model": Problem, "description": kind.__doc__} for kind in kinds}


def json_answer(
    content: Record, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a record as an answer."""
    return Response(
        content.model_dump_json(), status, headers=headers, media_type="application/json"
    )
