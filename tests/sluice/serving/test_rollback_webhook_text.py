"""No text of an alert can prevent a rollback, on either database (ROLL-2)."""

from collections.abc import Iterator

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import ContractError
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.traffic_split import TrafficSplit
from sluice.serving.ledger_rollback import LedgerRollback
from sluice.serving.rollback import RollbackWebhook
from tests.sluice.registry.conftest import postgres_server as postgres_server
from tests.sluice.registry.conftest import url as url
from tests.sluice.registry.ledger_samples import MODEL, NOW, Clock, promote_chain
from tests.sluice.serving.serving_samples import (
    LinearNetwork,
    candidate,
    deployed,
    quick_settings,
    run_server,
)
from tests.sluice.serving.test_rollback_webhook import alert, alerts_body, post_alerts

CONTROL_CHARACTERS = "Errors:\0 9\n of\x1b[2J 10\u2028\x85 \x7f\u202e"


@pytest.fixture
def ledger(url: str) -> Iterator[RolloutLedger]:
    with RolloutLedger.open(url, clock=Clock()) as opened:
        yield opened


@pytest.mark.parametrize(
    ("summary", "reason"),
    [
        (CONTROL_CHARACTERS, "Errors: 9 of [2J 10 "),
        ("\0\x01", "Sick "),
        ("x" * 5000, "x" * 300 + " "),
    ],
    ids=["control characters", "only control characters", "long"],
)
def test_an_alert_rolls_back_regardless_of_its_text(
    ledger: RolloutLedger, tmp_path_factory: pytest.TempPathFactory, summary: str, reason: str
) -> None:
    store = ArtifactStore(tmp_path_factory.mktemp("store"))
    promote_chain(ledger, store, 2)
    model = deployed("one", 1, LinearNetwork(1.0))
    hook = RollbackWebhook(
        rollback=LedgerRollback(ledger, MODEL, store, clock=Clock(NOW), cooldown_s=0),
    )
    sent = alert("rollback_production", model=MODEL)
    sent |= {"annotations": {"summary": summary}, "startsAt": NOW.isoformat()}
    split = TrafficSplit(epoch=1, production=candidate("one"))
    with run_server(
        {model.candidate: model}, split, settings=quick_settings(), webhook=hook, name=MODEL
    ) as server:
        response = post_alerts(server, alerts_body(sent))

    assert response.json()["alerts"][0]["act"] == "rolled_back", response.text
    assert ledger.production_number(MODEL) == 1
    assert ledger.history(MODEL)[-1].reason.startswith(reason + "[alert ")


def test_a_reason_with_a_nul_is_refused_alike_by_both_databases(
    ledger: RolloutLedger, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = ArtifactStore(tmp_path_factory.mktemp("store"))
    promote_chain(ledger, store, 2)

    with pytest.raises(
        ContractError, match="The reason must not contain a NUL character, got one at position 2"
    ):
        ledger.rollback(MODEL, expected=2, actor="ada", reason="it\0", store=store)
