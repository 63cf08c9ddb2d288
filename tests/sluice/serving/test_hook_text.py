"""No text of an alert keeps a rollback from happening, in either database (ROLL-2)."""

from collections.abc import Iterator

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import ContractError
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.weights import Weights
from sluice.serving.ledger_rollback import LedgerRollback
from sluice.serving.rollback import Hook
from tests.sluice.registry.conftest import postgres_server as postgres_server
from tests.sluice.registry.conftest import url as url
from tests.sluice.registry.ledger_samples import MODEL, NOW, Clock, promote_chain
from tests.sluice.serving.serving_samples import Says, candidate, deployed, live, quick_settings
from tests.sluice.serving.test_hook import alert, posted, tell

NASTY = "Errors:\0 9\n of\x1b[2J 10\u2028\x85 \x7f\u202e"


@pytest.fixture
def ledger(url: str) -> Iterator[RolloutLedger]:
    with RolloutLedger.open(url, clock=Clock()) as opened:
        yield opened


@pytest.mark.parametrize(
    ("summary", "reason"),
    [(NASTY, "Errors: 9 of [2J 10 "), ("\0\x01", "Sick "), ("x" * 5000, "x" * 300 + " ")],
    ids=["controls", "nothing else", "long"],
)
def test_an_alert_rolls_back_whatever_its_text_holds(
    ledger: RolloutLedger, tmp_path_factory: pytest.TempPathFactory, summary: str, reason: str
) -> None:
    store = ArtifactStore(tmp_path_factory.mktemp("store"))
    promote_chain(ledger, store, 2)
    model = deployed("one", 1, Says(1.0))
    hook = Hook(
        rollback=LedgerRollback(ledger, MODEL, store, clock=Clock(NOW), quiet_s=0),
    )
    told = alert("rollback_production", model=MODEL)
    told |= {"annotations": {"summary": summary}, "startsAt": NOW.isoformat()}
    weights = Weights(epoch=1, production=candidate("one"))
    with live(
        {model.candidate: model}, weights, settings=quick_settings(), hook=hook, name=MODEL
    ) as server:
        answer = tell(server, posted(told))

    assert answer.json()["alerts"][0]["act"] == "rolled_back", answer.text
    assert ledger.production_number(MODEL) == 1
    assert ledger.history(MODEL)[-1].reason.startswith(reason + "[alert ")


def test_a_reason_with_a_nul_is_refused_alike_by_both_databases(
    ledger: RolloutLedger, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = ArtifactStore(tmp_path_factory.mktemp("store"))
    promote_chain(ledger, store, 2)

    with pytest.raises(ContractError, match="The reason must hold no NUL character, got one at 2"):
        ledger.rollback(MODEL, expected=2, actor="ada", reason="it\0", store=store)
