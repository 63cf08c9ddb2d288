"""The hash chain of the registry's log reveals manipulations of the database (REG-2)."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import sqlalchemy as sa

from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import digest_bytes
from sluice.base.errors import IntegrityError
from sluice.registry import append_only, log_verification
from sluice.registry.database import Database
from sluice.registry.ledger import Ledger
from sluice.registry.records import RegistryFinding
from sluice.registry.tables import APPEND_ONLY_TABLES, LOGGED_TABLES, log
from tests.sluice.registry.ledger_samples import (
    MODEL,
    Clock,
    poc_receipt,
    promote_chain,
    sample_lineage,
)


class Intruder:
    """Runs SQL on either database; the append-only triggers are disabled and restored."""

    def __init__(self, url: str) -> None:
        self.database = Database.open(url, create=True)

    def run(self, *statements: str) -> None:
        with self.database.write() as connection:
            self.apply(connection, statements)

    @staticmethod
    def apply(connection: sa.Connection, statements: Sequence[str]) -> None:
        for table in APPEND_ONLY_TABLES:
            if connection.dialect.name == "sqlite":
                for action in ("update", "delete"):
                    name = f"{table.name}_no_{action}"
                    connection.execute(sa.text(f"DROP TRIGGER IF EXISTS {name}"))
            else:
                connection.execute(sa.text(f"ALTER TABLE {table.name} DISABLE TRIGGER ALL"))
        for statement in statements:
            assert connection.execute(sa.text(statement)).rowcount > 0, statement
        append_only.restore_triggers(connection)

    def lines(self) -> list[sa.Row[tuple[object, ...]]]:
        with self.database.read() as connection:
            return list(connection.execute(sa.select(log).order_by(log.c.number)))


@pytest.fixture
def intruder(ledger: Ledger, url: str, store: ArtifactStore) -> Iterator[Intruder]:
    promote_chain(ledger, store, 2)
    ledger.record_receipt(poc_receipt(passed=False))
    intruder = Intruder(url)
    yield intruder
    intruder.database.close()


def log_findings(ledger: Ledger, store: ArtifactStore) -> list[RegistryFinding]:
    return [f for f in ledger.verify(MODEL, store=store) if f.problem == "log"]


def test_log_digests_equal_an_independent_computation(
    ledger: Ledger, store: ArtifactStore, intruder: Intruder
) -> None:
    """Digest of a line: SHA-256 of [number, table, key, content, previous] as JSON."""
    assert log_findings(ledger, store) == []
    previous = "0" * 64
    lines = intruder.lines()
    for number, line in enumerate(lines, start=1):
        key = line.key.replace('"', '\\"')
        text = f'[{number},"{line.entity}","{key}","{line.content}","{previous}"]'
        assert digest_bytes(text.encode()) == line.digest
        previous = line.digest
    tables = [line.entity for line in lines]
    assert tables.count("sluice_versions") == tables.count("sluice_decisions") == 2
    assert tables.count("sluice_history") == 6  # register, stage, promote; twice


def test_every_row_has_one_log_line(intruder: Intruder) -> None:
    logged = {(line.entity, line.key) for line in intruder.lines()}
    with intruder.database.read() as connection:
        num_rows = sum(
            connection.execute(sa.select(sa.func.count()).select_from(t)).scalar_one()
            for t in LOGGED_TABLES
        )

    assert len(logged) == num_rows == len(intruder.lines())


LAST = "(SELECT max(number) FROM sluice_log)"
SWAP = (
    "UPDATE sluice_log SET number = -5 WHERE number = 5",
    "UPDATE sluice_log SET number = 5 WHERE number = 6",
    "UPDATE sluice_log SET number = 6 WHERE number = -5",
)
SWAP_HISTORY = (
    "UPDATE sluice_history SET id = -1 WHERE id = 1",
    "UPDATE sluice_history SET id = 1 WHERE id = 2",
    "UPDATE sluice_history SET id = 2 WHERE id = -1",
)


TAMPERING: list[tuple[Sequence[str], str]] = [
    (["UPDATE sluice_log SET content = 'f' || substr(content, 2) WHERE number = 4"], "changed"),
    (["DELETE FROM sluice_log WHERE number = 4"], "Line 4 is missing"),
    ([f"DELETE FROM sluice_log WHERE number = {LAST}"], "its head says"),
    (SWAP, "does not follow"),
    (SWAP_HISTORY, "not match line"),
    (["UPDATE sluice_log_head SET lines = lines - 1"], "its head says"),
    (["DELETE FROM sluice_log_head"], "head of the registry's log is missing"),
    (["UPDATE sluice_history SET actor = 'eve' WHERE id = 3"], "sluice_history [3] does not match"),
    (["UPDATE sluice_history SET at = '2025-03-14T09:00:00.000000+00:00'"], "not match line"),
    (["DELETE FROM sluice_history WHERE id = 6"], "the row is missing"),
    (["DELETE FROM sluice_recordings WHERE id = 3"], "the row is missing"),
    (["DELETE FROM sluice_decisions WHERE id = 1"], "the row is missing"),
    (["DELETE FROM sluice_version_receipts WHERE id = 4"], "the row is missing"),
    (["UPDATE sluice_versions SET lineage = replace(lineage, '0.643', '0.1')"], "not match line"),
    (["UPDATE sluice_receipts SET recorded_at = '2020-01-01T00:00:00+00:00'"], "not match line"),
    (["INSERT INTO sluice_models VALUES ('x', '2025-01-01T00:00:00+00:00')"], "has no line"),
]


def test_verify_reports_every_kind_of_tampering(intruder: Intruder) -> None:
    """Each manipulation of ``TAMPERING`` runs in a savepoint that is rolled back (REG-2)."""
    messages = []
    with intruder.database.write() as connection:
        for statements, message in TAMPERING:
            savepoint = connection.begin_nested()
            intruder.apply(connection, statements)
            all_findings = " ".join(finding.what for finding in log_verification.check(connection))
            messages.append(message if message in all_findings else all_findings)
            savepoint.rollback()

    assert messages == [message for _, message in TAMPERING]


def test_verify_reports_a_removed_model(
    ledger: Ledger, store: ArtifactStore, intruder: Intruder
) -> None:
    """The log covers all models, so it still contains the lines of a removed model."""
    ledger.register("other", sample_lineage(store, salt=5, model="other"), [])
    intruder.run(
        *(f"DELETE FROM {t} WHERE model = 'other'" for t in ("sluice_history", "sluice_pointers")),
        *("DELETE FROM sluice_versions WHERE model = 'other'",),
        "DELETE FROM sluice_models WHERE name = 'other'",
    )

    findings = [f.what for f in ledger.verify(None, store=store)]

    assert len(findings) == 3
    assert all("the row is missing" in what for what in findings)


def test_missing_head_blocks_writes(ledger: Ledger, intruder: Intruder) -> None:
    intruder.run("DELETE FROM sluice_log_head")

    with pytest.raises(IntegrityError, match="head of the registry's log is missing"):
        ledger.record_receipt(poc_receipt())


def test_insert_or_replace_bypasses_the_triggers_and_is_reported(
    tmp_path: Path, store: ArtifactStore
) -> None:
    """SQLite fires no delete trigger for REPLACE; the log reveals the change."""
    import sqlite3

    path = tmp_path / "r.db"
    with Ledger.open(f"sqlite:///{path}", clock=Clock()) as ledger:
        promote_chain(ledger, store, 1)
        connection = sqlite3.connect(path)
        connection.execute(
            "INSERT OR REPLACE INTO sluice_history SELECT id, at, model, action, from_version, "
            "to_version, 'eve', reason, receipt, revision FROM sluice_history WHERE id = 3"
        )
        connection.commit()
        connection.close()

        assert ledger.history(MODEL)[-1].actor == "eve"
        assert [f.problem for f in ledger.verify(None, store=store)] == ["log"]
