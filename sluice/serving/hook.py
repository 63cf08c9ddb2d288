"""``POST /hooks/rollback``: an alert of Prometheus sends everybody back (ROLL-2, OBS-1).

It takes what Alertmanager posts to a webhook, with a token that has the scope ``hook``: whoever may
ask for predictions may not roll back. A server without such a token has no such route.
"""

import asyncio
import time
from typing import Literal

from fastapi import Request, Response
from pydantic import AwareDatetime, BaseModel, Field, ValidationError

from sluice.base.errors import SluiceError
from sluice.base.settings import Record
from sluice.serving.answers import described, json_answer
from sluice.serving.background import in_background
from sluice.serving.body import read_body
from sluice.serving.front import notes_of
from sluice.serving.refusals import (
    BodyLate,
    HookFailed,
    Malformed,
    NotAllowed,
    NotAuthorized,
    TooLarge,
    TooMany,
    WrongInput,
    WrongMedia,
)
from sluice.serving.rollback import Act, Action, Complaint, Done, Hook, Rollback
from sluice.serving.routes import guarded_routes, token_name
from sluice.serving.state import serving_of

ROUTES = guarded_routes("hook")
"""Of a server that has a hook."""

_REASON_CHARACTERS = 300
_ACTIONS: tuple[Action, ...] = ("rollback", "rollback_production")


class PostedAlert(BaseModel):
    """One alert, as Alertmanager posts it; what else it posts is passed over."""

    status: Literal["firing", "resolved"]
    labels: dict[str, str]
    annotations: dict[str, str] = {}
    startsAt: AwareDatetime
    fingerprint: str = Field(pattern=r"^[0-9a-f]{1,64}$", description="Of its labels.")

    @property
    def key(self) -> str:
        """The same each time it is told that it fires; another once it fires anew."""
        return f"{self.fingerprint} {self.startsAt.isoformat()}"

    @property
    def reason(self) -> str:
        """Its summary in one line, or its name.

        Whoever writes an alert's text must not decide whether the rollback succeeds: characters
        that are not printed, of which no database or terminal takes all, become spaces.
        """
        for text in (self.annotations.get("summary", ""), self.labels.get("alertname", "")):
            words = "".join(c if c.isprintable() else " " for c in text).split()
            if words:
                return " ".join(words)[:_REASON_CHARACTERS]
        return "An alert fires."


class Posted(BaseModel):
    """The body of Alertmanager's webhook."""

    version: Literal["4"]
    alerts: list[PostedAlert] = Field(fail_fast=True)


class Handled(Record):
    """What came of one alert."""

    fingerprint: str
    act: Act
    what: str = Field(description="One sentence for people.")


class HookAnswer(Record):
    """Answer of ``POST /hooks/rollback``: what was done, alert by alert."""

    model: str
    changed: bool = Field(description="Whether anything was done that was not done before.")
    alerts: list[Handled]


@ROUTES.post(
    "/hooks/rollback",
    response_model=HookAnswer,
    responses=described(
        Malformed,
        NotAuthorized,
        NotAllowed,
        BodyLate,
        TooLarge,
        WrongMedia,
        WrongInput,
        TooMany,
        HookFailed,
    ),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": Posted.model_json_schema()}},
        }
    },
)
async def rollback(request: Request) -> Response:
    """Abort the rollout under way, or roll production back, as a firing alert asks for."""
    serving, hook, trace = serving_of(request), _hook_of(request), notes_of(request).trace
    hook.limit.require(time.monotonic())
    with serving.admission.reading(token_name(request)) as reading:
        body = await read_body(request, settings=serving.settings, reading=reading)
    posted = _read(body)
    handled = []
    for alert in posted.alerts:
        try:
            async with hook.one_at_a_time:
                done = await _handle(alert, hook.rollback, model=serving.model)
        except HookFailed as failed:
            serving.metrics.hook_acts.labels("failed").inc()
            serving.log.error("hook", trace=trace, alert=alert.key, failed=str(failed))
            raise
        serving.metrics.hook_acts.labels(done.act).inc()
        serving.log.warning("hook", trace=trace, alert=alert.key, act=done.act)
        handled.append(Handled(fingerprint=alert.fingerprint, act=done.act, what=done.what))
    return json_answer(
        HookAnswer(
            model=serving.model,
            changed=any(one.act != "nothing" for one in handled),
            alerts=handled,
        )
    )


def _hook_of(request: Request) -> Hook:
    hook = serving_of(request).hook
    assert hook is not None, "the route exists with a hook only"
    return hook


def _read(body: bytes) -> Posted:
    try:
        return Posted.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            raise Malformed(
                "The body must be JSON, and is not.", fix="Send what Alertmanager sends."
            ) from None
        place = ".".join(str(part) for part in first["loc"])
        raise WrongInput(
            f"The body must be that of Alertmanager's webhook, version 4; '{place}': "
            f"{first['msg']}.",
            fix="Point a webhook_config of Alertmanager here.",
        ) from None


async def _handle(alert: PostedAlert, rollback: Rollback, *, model: str) -> Done:
    about = alert.labels.get("model", model)
    action = next((a for a in _ACTIONS if a == alert.labels.get("sluice_action")), None)
    if alert.status != "firing":
        return Done(act="nothing", what="The alert is resolved.")
    if action is None:
        return Done(
            act="nothing",
            what=f"The alert has no label sluice_action with {' or '.join(_ACTIONS)}.",
        )
    if about != model:
        return Done(act="nothing", what=f"The alert is about another model than {model}.")
    complaint = Complaint(action=action, key=alert.key, reason=alert.reason, began=alert.startsAt)
    try:
        # Loading the version before takes seconds: not on the event loop.
        return await asyncio.wrap_future(
            in_background(lambda: rollback.answer(complaint), name="hook")
        )
    except SluiceError as error:
        raise HookFailed(
            f"The rollback failed: {error.what}", cause=error.cause, fix=error.fix
        ) from error
