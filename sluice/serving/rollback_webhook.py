"""The endpoint ``POST /hooks/rollback``: an alert aborts a rollout or rolls production back.

Alertmanager calls this route as a webhook. The route requires the scope ``hook``, so that clients
that may request predictions cannot roll back. A server has this route only if it has a token of
this scope, or a token file, to which such a token may be added later.
"""

import asyncio
import time
from typing import Literal

from fastapi import Request, Response
from pydantic import AwareDatetime, BaseModel, Field, ValidationError

from sluice.base.errors import SluiceError
from sluice.base.settings import Record
from sluice.serving.background import run_in_background
from sluice.serving.body import read_body
from sluice.serving.http_errors import (
    BadRequest,
    BodyTimeout,
    Forbidden,
    InvalidInput,
    PayloadTooLarge,
    RollbackFailed,
    TooManyRequests,
    Unauthorized,
    UnsupportedMediaType,
)
from sluice.serving.middleware import request_info
from sluice.serving.rollback import (
    RollbackAction,
    RollbackEffect,
    RollbackHandler,
    RollbackRequest,
    RollbackResult,
    RollbackWebhook,
)
from sluice.serving.routes import token_name, token_routes
from sluice.serving.schemas import error_responses, json_response
from sluice.serving.state import serving_of

ROUTES = token_routes("hook")
"""Routes of a server with a webhook."""

_MAX_REASON_CHARACTERS = 300
"""Maximum length of an alert's summary in the registry [characters]."""
_ACTIONS: tuple[RollbackAction, ...] = ("rollback", "rollback_production")


class AlertmanagerAlert(BaseModel):
    """One alert in the payload of Alertmanager; other fields are ignored."""

    status: Literal["firing", "resolved"]
    labels: dict[str, str]
    annotations: dict[str, str] = {}
    startsAt: AwareDatetime
    fingerprint: str = Field(pattern=r"^[0-9a-f]{1,64}$", description="Fingerprint of the labels.")

    @property
    def key(self) -> str:
        """Id of one firing of the alert: the same in all notifications until the alert resolves."""
        return f"{self.fingerprint} {self.startsAt.isoformat()}"

    @property
    def reason(self) -> str:
        """Summary of the alert in one line, or its name if it has no summary.

        Non-printable characters become spaces: databases or terminals reject some of these, and a
        rollback must not fail because of the text of its alert.
        """
        for text in (self.annotations.get("summary", ""), self.labels.get("alertname", "")):
            words = "".join(c if c.isprintable() else " " for c in text).split()
            if words:
                return " ".join(words)[:_MAX_REASON_CHARACTERS]
        return "An alert fires."


class AlertmanagerPayload(BaseModel):
    """Body of Alertmanager's webhook."""

    version: Literal["4"]
    alerts: list[AlertmanagerAlert] = Field(fail_fast=True)


class HandledAlert(Record):
    """Effect of one alert."""

    fingerprint: str
    act: RollbackEffect
    what: str = Field(description="Effect, or the reason why nothing was changed.")


class WebhookResponse(Record):
    """Response of ``POST /hooks/rollback``: the effect of each alert."""

    model: str
    changed: bool = Field(description="Whether any alert had an effect.")
    alerts: list[HandledAlert]


@ROUTES.post(
    "/hooks/rollback",
    response_model=WebhookResponse,
    responses=error_responses(
        BadRequest,
        Unauthorized,
        Forbidden,
        BodyTimeout,
        PayloadTooLarge,
        UnsupportedMediaType,
        InvalidInput,
        TooManyRequests,
        RollbackFailed,
    ),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": AlertmanagerPayload.model_json_schema()}},
        }
    },
)
async def rollback(request: Request) -> Response:
    """Abort the rollout in progress, or roll production back, as a firing alert requests."""
    serving, webhook = serving_of(request), _webhook_of(request)
    trace_id = request_info(request).trace_id
    webhook.limit.require(time.monotonic())
    with serving.admission.reserve_body_memory(token_name(request)) as body_reading:
        body = await read_body(request, settings=serving.settings, body_reading=body_reading)
    payload = _parse_payload(body)
    handled_alerts = []
    for alert in payload.alerts:
        try:
            async with webhook.handling_lock:
                result = await _handle(alert, webhook.rollback, model=serving.model)
        except RollbackFailed as failed:
            serving.metrics.hook_acts.labels("failed").inc()
            serving.log.error("hook", trace=trace_id, alert=alert.key, failed=str(failed))
            raise
        serving.metrics.hook_acts.labels(result.act).inc()
        serving.log.warning("hook", trace=trace_id, alert=alert.key, act=result.act)
        handled_alerts.append(
            HandledAlert(fingerprint=alert.fingerprint, act=result.act, what=result.what)
        )
    return json_response(
        WebhookResponse(
            model=serving.model,
            changed=any(alert.act != "nothing" for alert in handled_alerts),
            alerts=handled_alerts,
        )
    )


def _webhook_of(request: Request) -> RollbackWebhook:
    webhook = serving_of(request).webhook
    assert webhook is not None, "the route exists only with a webhook"
    return webhook


def _parse_payload(body: bytes) -> AlertmanagerPayload:
    try:
        return AlertmanagerPayload.model_validate_json(body)
    except ValidationError as error:
        first_error = error.errors()[0]
        if first_error["type"] == "json_invalid":
            raise BadRequest(
                "The body must be JSON, but is not.", fix="Send the payload of Alertmanager."
            ) from None
        field = ".".join(str(part) for part in first_error["loc"])
        raise InvalidInput(
            f"The body is not a payload of Alertmanager's webhook, version 4: '{field}': "
            f"{first_error['msg']}.",
            fix="Set this URL in a webhook_config of Alertmanager.",
        ) from None


async def _handle(
    alert: AlertmanagerAlert, rollback: RollbackHandler, *, model: str
) -> RollbackResult:
    """Execute the action that an alert requests, if the alert is firing and about this model."""
    alert_model = alert.labels.get("model", model)
    action = next((a for a in _ACTIONS if a == alert.labels.get("sluice_action")), None)
    if alert.status != "firing":
        return RollbackResult(act="nothing", what="The alert is resolved.")
    if action is None:
        return RollbackResult(
            act="nothing",
            what=f"The alert has no label sluice_action with {' or '.join(_ACTIONS)}.",
        )
    if alert_model != model:
        return RollbackResult(act="nothing", what=f"The alert is about another model than {model}.")
    request = RollbackRequest(
        action=action, key=alert.key, reason=alert.reason, began_at=alert.startsAt
    )
    try:
        # Loading the previous version takes seconds, so it must not run on the event loop.
        return await asyncio.wrap_future(
            run_in_background(lambda: rollback.handle(request), name="hook")
        )
    except SluiceError as error:
        raise RollbackFailed(
            f"The rollback failed: {error.what}", cause=error.cause, fix=error.fix
        ) from error
