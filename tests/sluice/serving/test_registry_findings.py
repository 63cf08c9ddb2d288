"""A running server reports changes of the registry that bypass the ledger's API."""

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
MOVE_POINTER = "UPDATE sluice_pointers SET version = 4, revision = revision + 1"
RESTORE_POINTER = "UPDATE sluice_pointers SET version = 2, revision = 2"
EDIT_RECEIPT = "UPDATE sluice_receipts SET payload = replace(payload, '0.054', '0.154')"
RESTORE_RECEIPT = "UPDATE sluice_receipts SET payload = replace(payload, '0.154', '0.054')"
EDIT_LINEAGE = "UPDATE sluice_versions SET lineage = replace(lineage, '0.643', '0.001')"
RESTORE_LINEAGE = "UPDATE sluice_versions SET lineage = replace(lineage, '0.001', '0.643')"


class DatabaseEditor:
    """Executes SQL on the registry's database and restores the triggers afterwards."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, statement: str) -> None:
        connection = sqlite3.connect(self.path, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
        triggers = rows.fetchall()
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


def read_state(server: RunningServer) -> tuple[int, str]:
    response = server.client.get("/readyz")
    return response.status_code, response.json()["state"]


def served_version(server: RunningServer) -> int:
    response = server.client.post("/predict", json=WINDOW)
    assert response.status_code == 200
    return int(response.json()["version"])


@pytest.mark.slow
def test_a_server_keeps_the_last_verified_version_and_reports_it(
    ledger: RolloutLedger, tmp_path: Path
) -> None:
    """All versions can be loaded, so only the registry check stops the unverified version."""
    store, editor = ArtifactStore(tmp_path / "artifacts"), DatabaseEditor(tmp_path / "r.db")
    loader = LedgerModels(ledger, MODEL, store)
    candidates = [ledger.version(MODEL, number).candidate for number in (1, 2, 3, 4)]
    models = {candidate: loader.load(candidate) for candidate in candidates}
    source = LedgerTrafficSplit(ledger, MODEL, registry_check_interval_s=0.05)
    settings = quick_settings(registry_timeout_s=20.0)

    with run_server(models, source.read(), settings=settings, source=source) as server:  # type: ignore[arg-type]
        assert (read_state(server), served_version(server)) == ((200, "serving"), 2)
        assert server.metrics()["sluice_registry_findings"] == 0

        for attack, repair, message in (
            (
                MOVE_POINTER,
                RESTORE_POINTER,
                "pointer is at version 4 after 3 moves, but the history ends with version 2",
            ),
            (EDIT_RECEIPT, RESTORE_RECEIPT, "does not match its digest"),
            (EDIT_LINEAGE, RESTORE_LINEAGE, "does not match line"),
        ):
            editor.run(attack)
            server.wait_for(lambda: read_state(server) == (200, "degraded"))

            assert served_version(server) == 2
            problems = " ".join(server.client.get("/problems").json()["problems"])
            assert message in problems
            assert "sluice registry verify" in problems
            metrics = server.metrics()
            assert metrics["sluice_registry_findings"] >= 1
            assert metrics['sluice_problem{about="registry"}'] == 1
            assert metrics["sluice_weights_source_up"] == 1
            assert message in " ".join(
                str(line["what"]) for line in server.lines() if line["event"] == "problem"
            )

            editor.run(repair)
            server.wait_for(lambda: read_state(server) == (200, "serving"))
            assert server.metrics()["sluice_registry_findings"] == 0

        ledger.promote(MODEL, 3, expected=2, actor="ada", reason="better", store=store)
        server.wait_for(lambda: served_version(server) == 3)
