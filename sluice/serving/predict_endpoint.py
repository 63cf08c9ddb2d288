"""The endpoint ``POST /predict``: checks the request, predicts and builds the response."""

import time
from typing import Any

from fastapi import Request, Response

from sluice.serving.arm_result import RoutedPrediction
from sluice.serving.body import read_body
from sluice.serving.contract import read_request
from sluice.serving.hosts import address_for_limits
from sluice.serving.http_errors import PREDICT_ERRORS
from sluice.serving.middleware import request_info
from sluice.serving.routes import token_name, token_routes
from sluice.serving.schemas import PredictionResponse, error_responses, json_response
from sluice.serving.state import serving_of
from sluice.workloads.codecs.window_requests import PredictRequest

ROUTES = token_routes("predict")


@ROUTES.post(
    "/predict",
    response_model=PredictionResponse,
    responses=error_responses(*PREDICT_ERRORS),
    # FastAPI must not parse the body: its size is checked first, and errors have our format.
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": PredictRequest.model_json_schema()}},
        }
    },
)
async def predict(request: Request) -> Response:
    """Predict from one or more elements, such as windows of feature rows; see /model."""
    serving, info = serving_of(request), request_info(request)
    admission, holder = serving.admission, token_name(request)
    admission.require_rate(holder)
    with admission.reading(holder) as reading:
        body = await read_body(request, settings=serving.settings, reading=reading)
    with admission.computing(holder):  # after the body, so that a slow client occupies no slot
        # The router uses the same table: nothing is awaited between here and its first line.
        deployed = serving.router.table.production.deployed
        parsed = read_request(
            body,
            PredictRequest if deployed.codec is None else deployed.codec.request_type,
            model=serving.model,
            max_elements=min(serving.settings.max_windows, deployed.contract.max_elements),
        )
        info.log_fields[parsed.elements_field] = len(parsed.elements)
        routed = await serving.router.route(
            parsed,
            address="" if request.client is None else address_for_limits(request.client.host),
            deadline=time.monotonic() + serving.settings.deadline_s,
        )
    tags = _tags(routed)
    info.log_fields.update(tags)
    if routed.challenger_fault is not None:
        info.log_fields["challenger_fault"] = routed.challenger_fault
        info.log_fields["challenger_error"] = routed.challenger_error
    prediction = PredictionResponse(
        outputs=routed.output.tolist(),
        model=serving.model,
        version=routed.version,
        candidate=routed.candidate,
        arm=routed.arm,
        fallback=routed.challenger_fault is not None,
        rollout=routed.split.rollout,
        epoch=routed.split.epoch,
        trace=info.trace_id,
    )
    return json_response(
        prediction, headers={f"x-sluice-{key}": str(value) for key, value in tags.items()}
    )


def _tags(routed: RoutedPrediction) -> dict[str, Any]:
    tags: dict[str, Any] = {"version": routed.version, "arm": routed.arm}
    if routed.split.rollout is not None:
        tags["rollout"] = routed.split.rollout
    return tags
