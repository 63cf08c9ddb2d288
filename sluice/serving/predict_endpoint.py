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
    # The schema is set here, because FastAPI must not parse the body: the size of the body is
    # checked first, and errors have Sluice's format.
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
    admission, client_token = serving.admission, token_name(request)
    admission.require_rate(client_token)
    with admission.reserve_body_memory(client_token) as body_reading:
        body = await read_body(request, settings=serving.settings, body_reading=body_reading)
    # The prediction is counted after the body was read, so that a slow client occupies no slot.
    with admission.count_prediction(client_token):
        # The router uses the same table: nothing is awaited until the first line of ``route``.
        deployed = serving.router.table.production.deployed
        parsed_request = read_request(
            body,
            PredictRequest if deployed.codec is None else deployed.codec.request_type,
            model=serving.model,
            max_elements=min(serving.settings.max_windows, deployed.contract.max_elements),
        )
        info.log_fields[parsed_request.elements_field] = len(parsed_request.elements)
        routed_prediction = await serving.router.route(
            parsed_request,
            address="" if request.client is None else address_for_limits(request.client.host),
            deadline=time.monotonic() + serving.settings.deadline_s,
        )
    routing_fields = _routing_fields(routed_prediction)
    info.log_fields.update(routing_fields)
    if routed_prediction.challenger_fault is not None:
        info.log_fields["challenger_fault"] = routed_prediction.challenger_fault
        info.log_fields["challenger_error"] = routed_prediction.challenger_error
    content = PredictionResponse(
        outputs=routed_prediction.output.tolist(),
        model=serving.model,
        version=routed_prediction.version,
        candidate=routed_prediction.candidate,
        arm=routed_prediction.arm,
        fallback=routed_prediction.challenger_fault is not None,
        rollout=routed_prediction.split.rollout,
        epoch=routed_prediction.split.epoch,
        trace=info.trace_id,
    )
    headers = {f"x-sluice-{name}": str(value) for name, value in routing_fields.items()}
    return json_response(content, headers=headers)


def _routing_fields(routed_prediction: RoutedPrediction) -> dict[str, Any]:
    """Return the fields on the routing, for the log and the headers of the response."""
    fields: dict[str, Any] = {"version": routed_prediction.version, "arm": routed_prediction.arm}
    if routed_prediction.split.rollout is not None:
        fields["rollout"] = routed_prediction.split.rollout
    return fields
