"""``POST /predict``: from the bytes of a body to an answer with its tags."""

import time
from typing import Any

from fastapi import Request, Response

from sluice.serving.answers import Prediction, described, json_answer
from sluice.serving.body import read_body
from sluice.serving.contract import PredictRequest, read_request
from sluice.serving.front import notes_of
from sluice.serving.hosts import counted_address
from sluice.serving.refusals import REFUSALS
from sluice.serving.routes import guarded_routes, token_name
from sluice.serving.state import serving_of
from sluice.serving.tried import Routed

GUARDED = guarded_routes("predict")


@GUARDED.post(
    "/predict",
    response_model=Prediction,
    responses=described(*REFUSALS),
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
    serving, notes = serving_of(request), notes_of(request)
    admission, holder = serving.admission, token_name(request)
    admission.require_rate(holder)
    with admission.reading(holder) as reading:
        body = await read_body(request, settings=serving.settings, reading=reading)
    with admission.computing(holder):  # not before: a slow client would hold a place meanwhile
        asked = read_request(body, model=serving.model, max_windows=serving.settings.max_windows)
        notes.facts["windows"] = len(asked.windows)
        routed = await serving.router.answer(
            asked,
            address="" if request.client is None else counted_address(request.client.host),
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
    return json_answer(
        answer, headers={f"x-sluice-{key}": str(value) for key, value in tags.items()}
    )


def _tags(routed: Routed) -> dict[str, Any]:
    tags: dict[str, Any] = {"version": routed.version, "arm": routed.arm}
    if routed.weights.rollout is not None:
        tags["rollout"] = routed.weights.rollout
    return tags
