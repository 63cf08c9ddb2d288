"""ROLL-2: an alert causes one rollback, and only with the token of the webhook."""

import io
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import StorageError
from sluice.registry.rollouts import RolloutLedger
from sluice.registry.signing import SigningKey
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.traffic_split import TrafficSplit
from sluice.serving.ledger_rollback import LedgerRollback
from sluice.serving.log import json_log
from sluice.serving.rollback import RollbackRequest, RollbackResult, RollbackWebhook
from sluice.serving.server_spec import ServerSpec, open_server
from sluice.serving.tokens import Tokens
from tests.sluice.registry.ledger_samples import MODEL as LEDGER_MODEL
from tests.sluice.registry.ledger_samples import Clock, promote_chain, register_sample
from tests.sluice.serving.serving_samples import (
    HOOK_SECRET,
    MODEL,
    SECRET,
    LinearNetwork,
    RunningServer,
    candidate,
    deployed,
    quick_settings,
    run_server,
)

STARTED_AT = "2026-03-14T12:00:00Z"


class Rollbacks:
    """Records rollback requests, so that tests of the app need no registry."""

    def __init__(self) -> None:
        self.requests: list[RollbackRequest] = []
        self.error: StorageError | None = None

    def handle(self, request: RollbackRequest) -> RollbackResult:
        if self.error is not None:
            raise self.error
        self.requests.append(request)
        return RollbackResult(
            act="aborted" if len(self.requests) == 1 else "nothing", what="So it is."
        )


def alert(action: str | None = "rollback", *, status: str = "firing", **labels: str) -> Any:
    return {
        "status": status,
        "labels": {"alertname": "Sick"} | ({"sluice_action": action} if action else {}) | labels,
        "annotations": {"summary": "Errors:\n 9 of 10."},
        "startsAt": STARTED_AT,
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "http://prometheus/graph",
        "fingerprint": "0123456789abcdef",
    }


def alerts_body(*alerts: Any) -> Any:
    return {
        "version": "4",
        "groupKey": "{}:{}",
        "truncatedAlerts": 0,
        "status": "firing",
        "receiver": "sluice",
        "groupLabels": {},
        "commonLabels": {},
        "commonAnnotations": {},
        "externalURL": "http://alertmanager",
        "alerts": list(alerts),
    }


@pytest.fixture
def rollbacks() -> Rollbacks:
    return Rollbacks()


@pytest.fixture
def server(rollbacks: Rollbacks) -> Iterator[RunningServer]:
    model = deployed("one", 1, LinearNetwork(1.0))
    hook = RollbackWebhook(rollback=rollbacks)
    split = TrafficSplit(epoch=1, production=candidate("one"))
    with run_server(
        {model.candidate: model}, split, settings=quick_settings(), webhook=hook
    ) as server:
        yield server


def post_alerts(server: RunningServer, body: Any, *, secret: str = HOOK_SECRET) -> httpx.Response:
    headers = {"authorization": f"Bearer {secret}"}
    return server.client.post("/hooks/rollback", json=body, headers=headers)


def test_a_firing_alert_is_handled_with_its_reason_and_key(
    server: RunningServer, rollbacks: Rollbacks
) -> None:
    first, again = (post_alerts(server, alerts_body(alert())) for _ in range(2))

    assert first.status_code == 200
    assert first.json() == {
        "model": MODEL,
        "changed": True,
        "alerts": [{"fingerprint": "0123456789abcdef", "act": "aborted", "what": "So it is."}],
    }
    assert again.json()["changed"] is False
    request = rollbacks.requests[0]
    assert (request.action, request.reason) == ("rollback", "Errors: 9 of 10.")
    assert request.began_at == datetime.fromisoformat(STARTED_AT)
    assert rollbacks.requests[1].key == request.key
    assert server.metrics()['sluice_hook_acts_total{act="aborted"}'] == 1


@pytest.mark.parametrize(
    ("alert_body", "message"),
    [
        (alert(status="resolved"), "resolved"),
        (alert(None), "no label sluice_action"),
        (alert("restart"), "no label sluice_action"),
        (alert(model="other"), "another model"),
    ],
)
def test_irrelevant_alerts_do_nothing(
    server: RunningServer, rollbacks: Rollbacks, alert_body: Any, message: str
) -> None:
    response = post_alerts(server, alerts_body(alert_body)).json()

    assert (response["changed"], response["alerts"][0]["act"]) == (False, "nothing")
    assert message in response["alerts"][0]["what"]
    assert rollbacks.requests == []


@pytest.mark.parametrize(
    ("secret", "status", "kind"),
    [("wrong-battery-staple", 401, "unauthorized"), (SECRET, 403, "forbidden")],
)
def test_the_webhook_refuses_other_tokens(
    server: RunningServer, rollbacks: Rollbacks, secret: str, status: int, kind: str
) -> None:
    response = post_alerts(server, alerts_body(alert()), secret=secret)

    assert (response.status_code, response.json()["kind"]) == (status, kind)
    assert rollbacks.requests == []


def test_an_alert_without_its_content_type_is_refused(
    server: RunningServer, rollbacks: Rollbacks
) -> None:
    headers = {"authorization": f"Bearer {HOOK_SECRET}"}
    content = json.dumps(alerts_body(alert()))
    response = server.client.post("/hooks/rollback", content=content, headers=headers)

    assert response.status_code == 415
    assert rollbacks.requests == []


def test_the_webhook_token_does_not_permit_predictions(server: RunningServer) -> None:
    headers = {"authorization": f"Bearer {HOOK_SECRET}"}

    assert server.client.get("/model", headers=headers).status_code == 403


def test_without_a_webhook_token_the_route_does_not_exist() -> None:
    model = deployed("one", 1, LinearNetwork(1.0))
    split = TrafficSplit(epoch=1, production=candidate("one"))
    with run_server({model.candidate: model}, split, settings=quick_settings()) as server:
        assert post_alerts(server, alerts_body(alert())).json()["kind"] == "unknown_route"
        assert "/hooks/rollback" not in server.client.get("/openapi.json").json()["paths"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": "3"}, "version"),
        ({"alerts": [{"status": "firing"}]}, "alerts.0.labels"),
        ({"alerts": [alert() | {"startsAt": "yesterday"}]}, "alerts.0.startsAt"),
        ({"alerts": [alert() | {"fingerprint": "] x"}]}, "alerts.0.fingerprint"),
    ],
)
def test_an_invalid_body_is_refused(
    server: RunningServer, rollbacks: Rollbacks, change: Any, message: str
) -> None:
    response = post_alerts(server, alerts_body() | change)

    assert (response.status_code, response.json()["kind"]) == (422, "invalid_input")
    assert f"'{message}'" in response.json()["what"]
    assert rollbacks.requests == []


def test_an_unavailable_registry_makes_the_sender_retry(
    server: RunningServer, rollbacks: Rollbacks
) -> None:
    rollbacks.error = StorageError("The registry is gone.", fix="Wait.")

    response = post_alerts(server, alerts_body(alert()))

    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert "The registry is gone." in response.json()["what"]
    assert server.metrics()['sluice_hook_acts_total{act="failed"}'] == 1


def test_alerts_beyond_the_rate_get_429(server: RunningServer) -> None:
    statuses = [post_alerts(server, alerts_body()).status_code for _ in range(11)]

    assert statuses == [200] * 10 + [429]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "artifacts")


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Iterator[RolloutLedger]:
    with RolloutLedger.open(f"sqlite:///{tmp_path / 'registry.db'}", clock=clock) as opened:
        yield opened


@pytest.fixture
def ledger_rollback(ledger: RolloutLedger, store: ArtifactStore, clock: Clock) -> LedgerRollback:
    return LedgerRollback(ledger, LEDGER_MODEL, store, clock=clock, cooldown_s=600)


def rollback_request(
    clock: Clock, action: Any = "rollback", *, key: str = "f1 t1"
) -> RollbackRequest:
    return RollbackRequest(action=action, key=key, reason="Errors: 9 of 10.", began_at=clock.now)


def begin_rollout(ledger: RolloutLedger, store: ArtifactStore, salt: int) -> int:
    production = ledger.production(LEDGER_MODEL)
    assert production is not None
    number = register_sample(ledger, store, salt=salt, reference=production.candidate)
    ledger.start_rollout(LEDGER_MODEL, number, RolloutSettings(), actor="ada", reason="try it")
    return number


def test_the_rollout_is_aborted_once_with_the_alert_in_its_history(
    ledger: RolloutLedger, store: ArtifactStore, ledger_rollback: LedgerRollback, clock: Clock
) -> None:
    promote_chain(ledger, store, 1)
    number = begin_rollout(ledger, store, 2)
    request = rollback_request(clock)

    first, again = ledger_rollback.handle(request), ledger_rollback.handle(request)

    assert (first.act, again.act) == ("aborted", "nothing")
    assert again.what == (
        f"This alert already aborted the rollout of {LEDGER_MODEL} version {number}."
    )
    rollout = ledger.rollout(LEDGER_MODEL)
    assert rollout is not None
    transitions = ledger.rollout_transitions(rollout.id)
    assert [t.outcome for t in transitions] == ["start", "abort"]
    assert (transitions[-1].actor, transitions[-1].reason) == (
        "alertmanager",
        "Errors: 9 of 10. [alert f1 t1]",
    )
    split = ledger.traffic_split(LEDGER_MODEL)
    assert split is not None
    assert (split.challenger, split.share) == (None, 0)


def test_an_alert_older_than_the_rollout_does_not_abort_it(
    ledger: RolloutLedger, store: ArtifactStore, ledger_rollback: LedgerRollback, clock: Clock
) -> None:
    promote_chain(ledger, store, 1)
    old = rollback_request(clock)
    clock.now += timedelta(minutes=5)
    begin_rollout(ledger, store, 2)

    result = ledger_rollback.handle(old)

    assert result.act == "nothing"
    assert "is not the cause of the alert" in result.what


def test_without_a_rollout_only_rollback_production_moves_production(
    ledger: RolloutLedger, store: ArtifactStore, ledger_rollback: LedgerRollback, clock: Clock
) -> None:
    promote_chain(ledger, store, 3)
    weak, strong = rollback_request(clock), rollback_request(clock, "rollback_production")

    assert ledger_rollback.handle(weak).what == f"No rollout of {LEDGER_MODEL} is in progress."
    assert ledger.production_number(LEDGER_MODEL) == 3
    result, again = ledger_rollback.handle(strong), ledger_rollback.handle(strong)

    assert (result.act, again.act) == ("rolled_back", "nothing")
    assert again.what == "This alert already rolled back to version 2."
    assert ledger.production_number(LEDGER_MODEL) == 2
    assert ledger.history(LEDGER_MODEL)[-1].actor == "alertmanager"


def test_a_second_alert_within_the_cooldown_does_nothing(
    ledger: RolloutLedger, store: ArtifactStore, ledger_rollback: LedgerRollback, clock: Clock
) -> None:
    promote_chain(ledger, store, 3)
    ledger_rollback.handle(rollback_request(clock, "rollback_production"))
    second = rollback_request(clock, "rollback_production", key="f2 t2")

    during_cooldown = ledger_rollback.handle(second)
    clock.now += timedelta(minutes=11)
    result = ledger_rollback.handle(second)

    assert "Production does not change for 600 s" in during_cooldown.what
    assert (during_cooldown.act, result.act) == ("nothing", "rolled_back")
    assert ledger.production_number(LEDGER_MODEL) == 1


def test_an_abort_starts_the_cooldown_of_production(
    ledger: RolloutLedger, store: ArtifactStore, ledger_rollback: LedgerRollback, clock: Clock
) -> None:
    promote_chain(ledger, store, 2)
    begin_rollout(ledger, store, 3)
    aborted = ledger_rollback.handle(rollback_request(clock, "rollback_production"))

    during_cooldown = ledger_rollback.handle(
        rollback_request(clock, "rollback_production", key="f2 t2")
    )

    assert (aborted.act, during_cooldown.act) == ("aborted", "nothing")
    assert ledger.production_number(LEDGER_MODEL) == 2


def test_an_alert_that_persists_after_an_abort_moves_production(
    ledger: RolloutLedger, store: ArtifactStore, ledger_rollback: LedgerRollback, clock: Clock
) -> None:
    """Alertmanager repeats an alert as long as it fires."""
    promote_chain(ledger, store, 2)
    begin_rollout(ledger, store, 3)
    request = rollback_request(clock, "rollback_production")

    acts = [ledger_rollback.handle(request).act]
    clock.now += timedelta(minutes=5)
    acts.append(ledger_rollback.handle(request).act)
    clock.now += timedelta(minutes=6)
    acts += [ledger_rollback.handle(request).act for _ in range(2)]

    assert acts == ["aborted", "nothing", "rolled_back", "nothing"]
    assert ledger.production_number(LEDGER_MODEL) == 1


def test_an_alert_older_than_the_rollout_moves_production_immediately(
    ledger: RolloutLedger, store: ArtifactStore, ledger_rollback: LedgerRollback, clock: Clock
) -> None:
    promote_chain(ledger, store, 2)
    request = rollback_request(clock, "rollback_production")
    clock.now += timedelta(minutes=5)
    begin_rollout(ledger, store, 3)

    assert ledger_rollback.handle(request).act == "rolled_back"
    assert ledger.production_number(LEDGER_MODEL) == 1


def test_an_alert_older_than_the_promotion_does_not_roll_it_back(
    ledger: RolloutLedger, store: ArtifactStore, ledger_rollback: LedgerRollback, clock: Clock
) -> None:
    old = rollback_request(clock, "rollback_production")
    clock.now += timedelta(minutes=5)
    promote_chain(ledger, store, 2)

    assert "is not the cause of the alert" in ledger_rollback.handle(old).what
    assert ledger.production_number(LEDGER_MODEL) == 2


@pytest.mark.parametrize("count", [0, 1])
def test_a_missing_previous_version_is_reported(
    ledger: RolloutLedger,
    store: ArtifactStore,
    ledger_rollback: LedgerRollback,
    clock: Clock,
    count: int,
) -> None:
    promote_chain(ledger, store, count)

    result = ledger_rollback.handle(rollback_request(clock, "rollback_production"))

    assert result.act == "nothing"
    assert "in production" in result.what


@pytest.mark.slow
def test_changes_by_the_webhook_are_signed(
    ledger: RolloutLedger, store: ArtifactStore, clock: Clock, tmp_path: Path
) -> None:
    key_file = tmp_path / "registry.key"
    key_file.write_bytes(b"k" * 32)
    key_file.chmod(0o600)
    url = f"sqlite:///{tmp_path / 'registry.db'}"
    with RolloutLedger.open(url, clock=clock, key=SigningKey.read(key_file)) as signed:
        promote_chain(signed, store, 2)
    spec = ServerSpec(
        model=LEDGER_MODEL,
        settings=quick_settings(),
        registry_url=f"sqlite:///{tmp_path / 'registry.db'}",
        artifacts=tmp_path / "artifacts",
        tokens=Tokens.of(hook=HOOK_SECRET),
        registry_key=key_file,
    )

    with open_server(spec, clock=clock, log=json_log(io.StringIO())) as serving:
        assert serving.webhook is not None
        result = serving.webhook.rollback.handle(rollback_request(clock, "rollback_production"))

    assert result.act == "rolled_back"
    assert ledger.verify(None, store=store, key=SigningKey.read(key_file)) == []


def test_concurrent_webhooks_abort_the_rollout_once(
    ledger: RolloutLedger, store: ArtifactStore, clock: Clock
) -> None:
    """Several servers of one model, each with its own webhook, receive the same alert."""
    promote_chain(ledger, store, 1)
    begin_rollout(ledger, store, 2)
    request = rollback_request(clock)
    barrier = threading.Barrier(4)

    def send(_: int) -> str:
        webhook = LedgerRollback(ledger, LEDGER_MODEL, store, clock=clock, cooldown_s=600)
        barrier.wait()
        return webhook.handle(request).act

    with ThreadPoolExecutor(4) as pool:
        acts = list(pool.map(send, range(4)))

    assert sorted(acts) == ["aborted", "nothing", "nothing", "nothing"]
