"""Manipulations of the database by unsigned moves, old copies, removed rows and replaced tables.

The edits of single rows are in ``test_production_check``.
"""

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import sqlalchemy as sa

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import GateBlocked, RegistryInconsistent
from sluice.registry.rollouts import RolloutLedger
from sluice.registry.signing import SigningKey
from sluice.rollout import transitions
from sluice.rollout.settings import RolloutSettings
from sluice.serving.ledger_models import LedgerModels
from sluice.serving.ledger_traffic_split import LedgerTrafficSplit
from tests.sluice.registry.ledger_samples import (
    MODEL,
    Clock,
    poc_receipt,
    promote_chain,
    register_sample,
)
from tests.sluice.registry.test_production_check import Attacked, fill_registry
from tests.support.sqlite_files import sqlite_file


@pytest.fixture
def attacked(tmp_path: Path) -> Iterator[Attacked]:
    """A registry in SQLite: versions 1 and 2 promoted, 3 staging, 4 dev."""
    url = f"sqlite:///{tmp_path / 'registry.db'}"
    store = ArtifactStore(tmp_path / "artifacts")
    with RolloutLedger.open(url, clock=Clock()) as ledger:
        fill_registry(ledger, store)
        yield Attacked(url, ledger, store)


@pytest.fixture
def attacked_on_any_database(url: str, store: ArtifactStore) -> Iterator[Attacked]:
    """The same registry in SQLite, and in PostgreSQL if available."""
    with RolloutLedger.open(url, clock=Clock()) as ledger:
        fill_registry(ledger, store)
        yield Attacked(url, ledger, store)


class SignedRegistry:
    """A registry in which versions 1 and 2 were promoted and every change is signed."""

    def __init__(self, folder: Path) -> None:
        keys = folder / "keys"
        keys.mkdir()
        path = keys / "registry.key"
        path.write_bytes(b"k" * 32)
        path.chmod(0o600)
        self.path = folder / "registry.db"
        self.url = f"sqlite:///{self.path}"
        self.store = ArtifactStore(folder / "artifacts")
        self.key = SigningKey.read(path)
        self.ledger = self.open(self.key)
        promote_chain(self.ledger, self.store, 2)

    def open(self, key: SigningKey | None) -> RolloutLedger:
        return RolloutLedger.open(self.url, clock=Clock(), key=key)

    def promote_third(self, ledger: RolloutLedger) -> str:
        """Register and promote version 3 through a ledger; return its candidate."""
        second = ledger.version(MODEL, 2).candidate
        number = register_sample(ledger, self.store, salt=3, reference=second)
        ledger.promote(MODEL, number, expected=2, actor="a", reason="r", store=self.store)
        return ledger.version(MODEL, number).candidate


@pytest.fixture
def signed(tmp_path: Path) -> Iterator[SignedRegistry]:
    registry = SignedRegistry(tmp_path)
    yield registry
    registry.ledger.close()


def test_server_with_the_key_rejects_unsigned_moves(signed: SignedRegistry) -> None:
    """The forged move is consistent: a ledger without a key wrote it."""
    source = LedgerTrafficSplit(signed.ledger, MODEL)
    source.read()
    with signed.open(None) as forger:
        third = signed.promote_third(forger)
        assert forger.verify(None, store=signed.store) == []

    with pytest.raises(RegistryInconsistent, match="not signed by a known key"):
        source.read()
    with signed.open(signed.key) as again:
        with pytest.raises(RegistryInconsistent, match="not signed by a known key"):
            LedgerTrafficSplit(again, MODEL).read()
        with pytest.raises(RegistryInconsistent, match="not signed by a known key"):
            LedgerModels(again, MODEL, signed.store).load(third)
        with pytest.raises(RegistryInconsistent, match="not signed by a known key"):
            again.production(MODEL)
        assert again.production_findings(MODEL) != []


def test_server_with_the_key_rejects_an_older_copy_of_the_registry(signed: SignedRegistry) -> None:
    """The copy is consistent; only the anchor, which is stored with the key, reveals it."""
    source = LedgerTrafficSplit(signed.ledger, MODEL)
    copy = signed.path.with_suffix(".copy")
    with sqlite_file(signed.path) as database, sqlite_file(copy) as target:
        database.backup(target)
    third = signed.promote_third(signed.ledger)
    assert source.read().production == third

    for suffix in ("-wal", "-shm"):
        signed.path.with_name(signed.path.name + suffix).unlink(missing_ok=True)
    shutil.move(copy, signed.path)

    with signed.open(None) as unkeyed:
        assert unkeyed.production_number(MODEL) == 2
        assert unkeyed.verify(None, store=signed.store) == []
    for ledger in (signed.ledger, signed.open(signed.key)):
        with pytest.raises(RegistryInconsistent, match="the database ends with line"):
            LedgerTrafficSplit(ledger, MODEL).read()
    with pytest.raises(RegistryInconsistent):
        source.read()


CHECKS: dict[str, Callable[[SignedRegistry], object]] = {
    "a server": lambda registry: LedgerTrafficSplit(registry.ledger, MODEL).read(),
    "verify": lambda registry: registry.ledger.verify(
        MODEL, store=registry.store, key=registry.key
    ),
    "production findings": lambda registry: registry.ledger.production_findings(MODEL),
}


@pytest.mark.parametrize("check", CHECKS)
def test_signed_move_during_a_check_causes_no_finding(signed: SignedRegistry, check: str) -> None:
    """The check reads the database before the move and the anchor after it."""
    moved: list[str] = []

    def promote(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "sluice_pointers" in statement and not moved:  # the transaction has begun to read
            moved.append("")
            with signed.open(signed.key) as other:
                moved[0] = signed.promote_third(other)

    LedgerTrafficSplit(signed.ledger, MODEL).read()  # creates the secret
    sa.event.listen(signed.ledger._database._engine, "after_cursor_execute", promote)

    for _ in range(2):
        result = CHECKS[check](signed)  # a server would raise an error
        assert result if check == "a server" else result == []
    assert LedgerTrafficSplit(signed.ledger, MODEL).read().production == moved[0] != ""


def test_removed_abort_of_a_rollout_is_rejected(attacked: Attacked) -> None:
    """The last transition is removed, and the head reset to the previous one."""
    ledger, clock = attacked.ledger, Clock()
    started = ledger.start_rollout(MODEL, 3, RolloutSettings(), actor="a", reason="r").rollout
    ledger.record_transition(
        started, transitions.abort(started, now=clock(), actor="bob", reason="it errs")
    )
    assert LedgerTrafficSplit(ledger, MODEL).read().challenger is None

    attacked.write(
        "DELETE FROM sluice_rollout_transitions WHERE outcome = 'abort'",
        f"UPDATE sluice_rollout_heads SET revision = 0, state = '{started.model_dump_json()}'",
    )

    with pytest.raises(
        RegistryInconsistent, match=r"sluice_rollout_transitions .* the row is missing"
    ):
        LedgerTrafficSplit(ledger, MODEL).read()  # as a newly started server
    with pytest.raises(RegistryInconsistent):
        ledger.traffic_split(MODEL)  # as the controller


FAILED = "(SELECT digest FROM sluice_receipts WHERE gate = 'poc' AND payload LIKE '%\"fail\"%')"
REMOVE_REJECTION: dict[str, Sequence[str]] = {
    "link removed": [f"DELETE FROM sluice_version_receipts WHERE receipt = {FAILED}"],
    "receipt removed": [
        "PRAGMA defer_foreign_keys = ON",
        "CREATE TABLE kept AS SELECT * FROM sluice_receipts WHERE digest = " + FAILED,
        f"DELETE FROM sluice_receipts WHERE digest = {FAILED}",
    ],
    "last recording removed": [
        "DELETE FROM sluice_recordings WHERE id = (SELECT max(id) FROM sluice_recordings)"
    ],
    "last recording moved to another receipt": [
        "UPDATE sluice_recordings SET receipt = (SELECT receipt FROM sluice_decisions LIMIT 1) "
        "WHERE id = (SELECT max(id) FROM sluice_recordings)"
    ],
}


@pytest.mark.parametrize("name", REMOVE_REJECTION)
def test_removed_rejection_is_detected_by_promotion_and_rollout(
    attacked: Attacked, tmp_path: Path, name: str
) -> None:
    """Version 3 has verdict PROMOTE; later its POC gate failed, passed, and failed again."""
    ledger, store = attacked.ledger, attacked.store
    three = ledger.version(MODEL, 3).lineage
    for passed in (False, True, False):
        ledger.register(MODEL, three, [poc_receipt(passed=passed)])
    operations: list[Callable[[], object]] = [
        lambda: ledger.promote(MODEL, 3, expected=2, actor="a", reason="r", store=store),
        lambda: ledger.start_rollout(MODEL, 3, RolloutSettings(), actor="a", reason="r"),
        lambda: ledger.require_promotable(MODEL, 3),
    ]
    for operation in operations:
        with pytest.raises(GateBlocked, match="poc"):
            operation()

    with sqlite_file(tmp_path / "registry.db") as database:  # without foreign keys
        query = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        triggers = database.execute(query).fetchall()
        for trigger, _ in triggers:
            database.execute(f"DROP TRIGGER {trigger}")
        for statement in REMOVE_REJECTION[name]:
            database.execute(statement)
        for _, definition in triggers:
            database.execute(definition)

    for operation in operations:
        with pytest.raises(RegistryInconsistent, match="sluice registry verify"):
            operation()
    assert ledger.production_number(MODEL) == 2


@pytest.mark.slow
def test_view_in_place_of_a_table_is_reported(attacked: Attacked) -> None:
    """The view returns another version at random, so a check may read the correct one."""
    source = LedgerTrafficSplit(attacked.ledger, MODEL)
    before = source.read()
    attacked.write(
        "ALTER TABLE sluice_pointers RENAME TO kept",
        "CREATE VIEW sluice_pointers AS SELECT model, name, "
        "CASE abs(random()) % 6 WHEN 0 THEN 4 ELSE version END AS version, revision FROM kept",
        is_silent=False,
    )

    refused = 0
    for _ in range(60):
        try:
            assert source.read() == before
        except RegistryInconsistent as error:
            refused += "is not an ordinary table" in str(error)
    assert refused > 0
    findings = attacked.ledger.verify(None, store=attacked.store)
    assert "sluice_pointers" in " ".join(f.what for f in findings if f.problem == "table")


POSTGRESQL_TABLES: dict[str, Sequence[str]] = {
    "view that returns another version at every sixth read": [
        "CREATE SEQUENCE reads",
        "ALTER TABLE sluice_pointers RENAME TO kept",
        "CREATE VIEW sluice_pointers AS SELECT model, name, "
        "CASE nextval('reads') % 6 WHEN 0 THEN 4 ELSE version END AS version, revision FROM kept",
    ],
    "rule that moves the pointer at the next insert": [
        "CREATE RULE later AS ON INSERT TO sluice_history DO ALSO "
        "UPDATE sluice_pointers SET version = 4"
    ],
    "rule that suppresses records of rejected attempts": [
        "CREATE RULE quiet AS ON INSERT TO sluice_refusals DO INSTEAD NOTHING"
    ],
    "policy that hides rows": [
        "ALTER TABLE sluice_history ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY half ON sluice_history USING (revision = 1)",
    ],
    "child table with additional rows": [
        "CREATE TABLE more () INHERITS (sluice_rollout_heads)",
    ],
}
RESTORE_TABLES: dict[str, Sequence[str]] = {
    "view that returns another version at every sixth read": [
        "DROP VIEW sluice_pointers",
        "ALTER TABLE kept RENAME TO sluice_pointers",
    ],
    "rule that moves the pointer at the next insert": ["DROP RULE later ON sluice_history"],
    "rule that suppresses records of rejected attempts": ["DROP RULE quiet ON sluice_refusals"],
    "policy that hides rows": [
        "DROP POLICY half ON sluice_history",
        "ALTER TABLE sluice_history DISABLE ROW LEVEL SECURITY",
    ],
    "child table with additional rows": ["DROP TABLE more"],
}


@pytest.mark.slow
@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_postgresql_tables_must_be_plain_tables(attacked_on_any_database: Attacked) -> None:
    attacked = attacked_on_any_database
    source = LedgerTrafficSplit(attacked.ledger, MODEL, registry_check_interval_s=3600)
    before = source.read()
    for name, statements in POSTGRESQL_TABLES.items():
        attacked.write(*statements, is_silent=False)

        for _ in range(8):
            with contextlib.suppress(RegistryInconsistent):
                assert source.read() == before, name
        with pytest.raises(RegistryInconsistent):
            source.read()
        findings = attacked.ledger.verify(None, store=attacked.store)
        assert "table" in {finding.problem for finding in findings}, name

        attacked.write(*RESTORE_TABLES[name], is_silent=False)
        assert source.read() == before
        assert attacked.ledger.verify(None, store=attacked.store) == [], name
