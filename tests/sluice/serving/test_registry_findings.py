"""A running server while somebody bypasses the ledger's API: real ledger, real HTTP."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.registry.rollouts import RolloutLedger
from sluice.serving.ledger_models import LedgerModels
from sluice.serving.ledger_traffic_split import LedgerTrafficSplit
from tests.sluice.registry.ledger_samples import (
    MODEL,
    Clock,
    promote_chain,
    register_sample,
    sample_lineage,
)
from tests.sluice.serving.serving_samples import RunningServer, quick_settings, run_server

WINDOW = {"columns": ["slope", "value"], "windows": [[[0.0, 1.0]] * 8]}
TO_DEV = "UPDATE sluice_pointers SET version = 4, revision = revision + 1"
BACK = "UPDATE sluice_pointers SET version = 2, revision = 2"
EDIT_RECEIPT = "UPDATE sluice_receipts SET payload = replace(payload, '0.054', '0.154')"
MEND_RECEIPT = "UPDATE sluice_receipts SET payload = replace(payload, '0.154', '0.054')"
EDIT_LINEAGE = "UPDATE sluice_versions SET lineage = replace(lineage, '0.643', '0.001')"
MEND_LINEAGE = "UPDATE sluice_versions SET lineage = replace(lineage, '0.001', '0.643')"


class Intruder:
    """SQL past the ledger; the triggers are as before afterwards."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, statement: str) -> None:
        connection = sqlite3.connect(self.path, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        found = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
        triggers = found.fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        assert connection.execute(statement).rowcount > 0
        for _, definition in triggers:
            connection.execute(definition)
        connection.execute("COMMIT")
        connection.close()


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[RolloutLedger]:
    with RolloutLedger.open(f"sqlite:///{tmp_path / 'r.db'}", clock=Clock()) as ledger:
        store = ArtifactStore(tmp_path / "artifacts")
        promote_chain(ledger, store, 2)
        register_sample(ledger, store, salt=3, reference=ledger.version(MODEL, 2).candidate)
        ledger.register(MODEL, sample_lineage(store, salt=4), [])
        yield ledger


def phase(server: RunningServer) -> tuple[int, str]:
    answer = server.client.get("/readyz")
    return answer.status_code, answer.json()["state"]


def served(server: RunningServer) -> int:
    answer = server.client.post("/predict", json=WINDOW)
    assert answer.status_code == 200
    return int(answer.json()["version"])


@pytest.mark.slow
def test_a_server_keeps_the_last_verified_version_and_reports_it(
    ledger: RolloutLedger, tmp_path: Path
) -> None:
    """Every version loads here: nothing but the check keeps the dev version from serving."""
    store, intruder = ArtifactStore(tmp_path / "artifacts"), Intruder(tmp_path / "r.db")
    loader = LedgerModels(ledger, MODEL, store)
    candidates = [ledger.version(MODEL, number).candidate for number in (1, 2, 3, 4)]
    models = {candidate: loader.load(candidate) for candidate in candidates}
    source = LedgerTrafficSplit(ledger, MODEL, registry_check_interval_s=0.05)
    settings = quick_settings(registry_timeout_s=20.0)

    with run_server(models, source.read(), settings=settings, source=source) as server:  # type: ignore[arg-type]
        assert (phase(server), served(server)) == ((200, "serving"), 2)
        assert server.metrics()["sluice_registry_findings"] == 0

        for attack, mend, said in (
            (
                TO_DEV,
                BACK,
                "pointer is at version 4 after 3 moves, but the history ends with version 2",
            ),
            (EDIT_RECEIPT, MEND_RECEIPT, "does not match its digest"),
            (EDIT_LINEAGE, MEND_LINEAGE, "does not match line"),
        ):
            intruder.run(attack)
            server.wait_for(lambda: phase(server) == (200, "degraded"))

            assert served(server) == 2
            problems = " ".join(server.client.get("/problems").json()["problems"])
            assert said in problems
            assert "sluice registry verify" in problems
            metrics = server.metrics()
            assert metrics["sluice_registry_findings"] >= 1
            assert metrics['sluice_problem{about="registry"}'] == 1
            assert metrics["sluice_weights_source_up"] == 1
            assert said in " ".join(
                str(line["what"]) for line in server.lines() if line["event"] == "problem"
            )

            intruder.run(mend)
            server.wait_for(lambda: phase(server) == (200, "serving"))
            assert server.metrics()["sluice_registry_findings"] == 0

        ledger.promote(MODEL, 3, expected=2, actor="ada", reason="better", store=store)
        server.wait_for(lambda: served(server) == 3)
