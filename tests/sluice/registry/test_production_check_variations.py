"""Further manipulations of the database: removed rows, other tables, other keys.

Each is another mechanism than the edits in ``test_production_check``.
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
from tests.sluice.registry.test_production_check import Attacked, fill
from tests.support.sqlite_files import sqlite_file


@pytest.fixture
def attacked(tmp_path: Path) -> Iterator[Attacked]:
    """Versions 1 and 2 promoted, 3 staging, 4 dev; in the embedded database."""
    url = f"sqlite:///{tmp_path / 'registry.db'}"
    store = ArtifactStore(tmp_path / "artifacts")
    with RolloutLedger.open(url, clock=Clock()) as ledger:
        fill(ledger, store)
        yield Attacked(url, ledger, store)


@pytest.fixture
def attacked_anywhere(url: str, store: ArtifactStore) -> Iterator[Attacked]:
    """The same, and in PostgreSQL where there is one."""
    with RolloutLedger.open(url, clock=Clock()) as ledger:
        fill(ledger, store)
        yield Attacked(url, ledger, store)


class Signed:
    """A registry with signed changes, and a server with the key."""

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
        """Register and promote a version with whatever key a ledger has; return its candidate."""
        second = ledger.version(MODEL, 2).candidate
        number = register_sample(ledger, self.store, salt=3, reference=second)
        ledger.promote(MODEL, number, expected=2, actor="a", reason="r", store=self.store)
        return ledger.version(MODEL, number).candidate


@pytest.fixture
def signed(tmp_path: Path) -> Iterator[Signed]:
    made = Signed(tmp_path)
    yield made
    made.ledger.close()


def test_a_server_with_the_key_ignores_unsigned_moves(signed: Signed) -> None:
    """The forged rows, lines and head are those that the ledger would have written."""
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


def test_a_server_with_the_key_rejects_an_older_copy(signed: Signed) -> None:
    """The copy is consistent in itself; the anchor is beside the key."""
    source = LedgerTrafficSplit(signed.ledger, MODEL)
    copy = signed.path.with_suffix(".copy")
    with sqlite_file(signed.path) as database, sqlite_file(copy) as to:
        database.backup(to)
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


LOOKS: dict[str, Callable[[Signed], object]] = {
    "a server": lambda it: LedgerTrafficSplit(it.ledger, MODEL).read(),
    "verify": lambda it: it.ledger.verify(MODEL, store=it.store, key=it.key),
    "its findings": lambda it: it.ledger.production_findings(MODEL),
}


@pytest.mark.parametrize("who", LOOKS)
def test_a_signed_move_during_a_check_is_not_a_finding(signed: Signed, who: str) -> None:
    """The check reads the database before the move and the anchor after it."""
    moved: list[str] = []

    def promote(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "sluice_pointers" in statement and not moved:  # the transaction has begun to read
            moved.append("")
            with signed.open(signed.key) as other:
                moved[0] = signed.promote_third(other)

    LedgerTrafficSplit(signed.ledger, MODEL).read()  # makes the secret
    sa.event.listen(signed.ledger._database._engine, "after_cursor_execute", promote)

    for _ in range(2):
        seen = LOOKS[who](signed)  # a server would raise
        assert seen if who == "a server" else seen == []
    assert LedgerTrafficSplit(signed.ledger, MODEL).read().production == moved[0] != ""


def test_a_challenger_that_was_rolled_back_does_not_come_back(attacked: Attacked) -> None:
    """The last transition is removed, and the head reset to the previous one."""
    ledger, clock = attacked.ledger, Clock()
    begun = ledger.start_rollout(MODEL, 3, RolloutSettings(), actor="a", reason="r").rollout
    ledger.record_transition(
        begun, transitions.abort(begun, now=clock(), actor="bob", reason="it errs")
    )
    assert LedgerTrafficSplit(ledger, MODEL).read().challenger is None

    attacked.write(
        "DELETE FROM sluice_rollout_transitions WHERE outcome = 'abort'",
        f"UPDATE sluice_rollout_heads SET revision = 0, state = '{begun.model_dump_json()}'",
    )

    with pytest.raises(
        RegistryInconsistent, match=r"sluice_rollout_transitions .* the row is missing"
    ):
        LedgerTrafficSplit(ledger, MODEL).read()  # a server that starts now
    with pytest.raises(RegistryInconsistent):
        ledger.traffic_split(MODEL)  # who drives the rollout


FAILED = "(SELECT digest FROM sluice_receipts WHERE gate = 'poc' AND payload LIKE '%\"fail\"%')"
HIDE_A_NO: dict[str, Sequence[str]] = {
    "its link is gone": [f"DELETE FROM sluice_version_receipts WHERE receipt = {FAILED}"],
    "it is gone": [
        "PRAGMA defer_foreign_keys = ON",
        "CREATE TABLE kept AS SELECT * FROM sluice_receipts WHERE digest = " + FAILED,
        f"DELETE FROM sluice_receipts WHERE digest = {FAILED}",
    ],
    "that it was said again is gone": [
        "DELETE FROM sluice_recordings WHERE id = (SELECT max(id) FROM sluice_recordings)"
    ],
    "that it was said again is of another receipt": [
        "UPDATE sluice_recordings SET receipt = (SELECT receipt FROM sluice_decisions LIMIT 1) "
        "WHERE id = (SELECT max(id) FROM sluice_recordings)"
    ],
}


@pytest.mark.parametrize("name", HIDE_A_NO)
def test_a_verdict_cannot_be_removed_from_the_evidence(
    attacked: Attacked, tmp_path: Path, name: str
) -> None:
    """Version 3 was approved; afterwards its POC gate failed, passed, and failed again."""
    ledger, store = attacked.ledger, attacked.store
    three = ledger.version(MODEL, 3).lineage
    for passed in (False, True, False):
        ledger.register(MODEL, three, [poc_receipt(passed=passed)])
    acts: list[Callable[[], object]] = [
        lambda: ledger.promote(MODEL, 3, expected=2, actor="a", reason="r", store=store),
        lambda: ledger.start_rollout(MODEL, 3, RolloutSettings(), actor="a", reason="r"),
        lambda: ledger.require_promotable(MODEL, 3),
    ]
    for act in acts:
        with pytest.raises(GateBlocked, match="poc"):
            act()

    with sqlite_file(tmp_path / "registry.db") as database:  # without foreign keys
        found = database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
        triggers = found.fetchall()
        for trigger, _ in triggers:
            database.execute(f"DROP TRIGGER {trigger}")
        for statement in HIDE_A_NO[name]:
            database.execute(statement)
        for _, definition in triggers:
            database.execute(definition)

    for act in acts:
        with pytest.raises(RegistryInconsistent, match="sluice registry verify"):
            act()
    assert ledger.production_number(MODEL) == 2


@pytest.mark.slow
def test_a_view_in_place_of_a_table_is_found(attacked: Attacked) -> None:
    """A view returns the correct version to the check and another one to the user."""
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
            refused += "is not a plain table" in str(error)
    assert refused > 0
    findings = attacked.ledger.verify(None, store=attacked.store)
    assert "sluice_pointers" in " ".join(f.what for f in findings if f.problem == "table")


POSTGRESQL_TABLES: dict[str, Sequence[str]] = {
    "a view that counts how often it was read": [
        "CREATE SEQUENCE reads",
        "ALTER TABLE sluice_pointers RENAME TO kept",
        "CREATE VIEW sluice_pointers AS SELECT model, name, "
        "CASE nextval('reads') % 6 WHEN 0 THEN 4 ELSE version END AS version, revision FROM kept",
    ],
    "a rule that moves the pointer with the next line of history": [
        "CREATE RULE later AS ON INSERT TO sluice_history DO ALSO "
        "UPDATE sluice_pointers SET version = 4"
    ],
    "a rule that lets nobody be refused on the record": [
        "CREATE RULE quiet AS ON INSERT TO sluice_refusals DO INSTEAD NOTHING"
    ],
    "a policy that hides rows from some": [
        "ALTER TABLE sluice_history ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY half ON sluice_history USING (revision = 1)",
    ],
    "a child that has more rows": [
        "CREATE TABLE more () INHERITS (sluice_rollout_heads)",
    ],
}
TABLES_AS_BEFORE: dict[str, Sequence[str]] = {
    "a view that counts how often it was read": [
        "DROP VIEW sluice_pointers",
        "ALTER TABLE kept RENAME TO sluice_pointers",
    ],
    "a rule that moves the pointer with the next line of history": [
        "DROP RULE later ON sluice_history"
    ],
    "a rule that lets nobody be refused on the record": ["DROP RULE quiet ON sluice_refusals"],
    "a policy that hides rows from some": [
        "DROP POLICY half ON sluice_history",
        "ALTER TABLE sluice_history DISABLE ROW LEVEL SECURITY",
    ],
    "a child that has more rows": ["DROP TABLE more"],
}


@pytest.mark.slow
@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_postgresql_tables_must_be_plain_tables(attacked_anywhere: Attacked) -> None:
    attacked = attacked_anywhere
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

        attacked.write(*TABLES_AS_BEFORE[name], is_silent=False)
        assert source.read() == before
        assert attacked.ledger.verify(None, store=attacked.store) == [], name
