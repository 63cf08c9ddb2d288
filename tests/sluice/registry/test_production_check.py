"""Uses of the production pointer reject a manipulated registry, and verify reports it."""

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import sqlalchemy as sa

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import IntegrityError, RegistryInconsistent
from sluice.base.home import Home
from sluice.cli.app import run_command
from sluice.registry import append_only, production_check
from sluice.registry.database import Database
from sluice.registry.rollouts import RolloutLedger
from sluice.registry.tables import APPEND_ONLY_TABLES
from sluice.rollout import transitions
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state import Transition
from sluice.serving.ledger_models import LedgerModels
from sluice.serving.ledger_traffic_split import LedgerTrafficSplit
from tests.sluice.registry.ledger_samples import (
    MODEL,
    Clock,
    promote_chain,
    register_sample,
    sample_lineage,
)

TO_DEV = "UPDATE sluice_pointers SET version = 4, revision = revision + 1"
TO_STAGING = "UPDATE sluice_pointers SET version = 3, revision = revision + 1"
MOVE = (
    "INSERT INTO sluice_history "
    "(at, model, action, from_version, to_version, actor, reason, receipt, revision) "
    "SELECT at, model, '{action}', 2, {to}, 'eve', 'r', {receipt}, 3 "
    "FROM sluice_history WHERE revision = 2"
)
OWN_RECEIPT = (
    "(SELECT receipt FROM sluice_version_receipts WHERE number = 3 ORDER BY id DESC LIMIT 1)"
)

ATTACKS: dict[str, Sequence[str]] = {
    "pointer to a dev version": [TO_DEV],
    "pointer to a dev version, same revision": ["UPDATE sluice_pointers SET version = 4"],
    "pointer to a staging version": [TO_STAGING],
    "pointer moved back without history": ["UPDATE sluice_pointers SET version = 1"],
    "pointer set to NULL": ["UPDATE sluice_pointers SET version = NULL"],
    "pointer revision alone": ["UPDATE sluice_pointers SET revision = revision + 7"],
    "pointer deleted": [f"DELETE FROM sluice_pointers WHERE model = '{MODEL}'"],
    "pointer and a move without receipt": [
        TO_DEV,
        MOVE.format(action="promote", to=4, receipt="NULL"),
    ],
    "pointer and a move on the receipt of another version": [
        TO_DEV,
        MOVE.format(action="promote", to=4, receipt="receipt"),
    ],
    "pointer and a move on its own receipt, which is not in the log": [
        TO_STAGING,
        MOVE.format(action="promote", to=3, receipt=OWN_RECEIPT),
    ],
    "pointer and a rollback": [TO_DEV, MOVE.format(action="rollback", to=4, receipt="NULL")],
    "pointer and a move with a log line outside the hash chain": [
        TO_STAGING,
        MOVE.format(action="promote", to=3, receipt=OWN_RECEIPT),
        "INSERT INTO sluice_log SELECT number + 1, entity, '[' || "
        "(SELECT max(id) FROM sluice_history) || ']', content, digest, content FROM sluice_log "
        "WHERE number = (SELECT max(number) FROM sluice_log)",
        "UPDATE sluice_log_head SET lines = lines + 1",
    ],
    "last move removed": [
        "DELETE FROM sluice_history WHERE revision = 2",
        "UPDATE sluice_pointers SET version = 1, revision = 1",
    ],
    "actor of a move edited": ["UPDATE sluice_history SET actor = 'eve' WHERE revision = 2"],
    "stage of the version edited": [
        "UPDATE sluice_history SET action = 'unstage' WHERE action = 'stage' AND to_version = 2"
    ],
    "metrics in the lineage edited": [
        "UPDATE sluice_versions SET lineage = replace(lineage, '\"mse\":0.643', '\"mse\":0.001') "
        "WHERE number = 2"
    ],
    "lineage replaced by that of another version": [
        "UPDATE sluice_versions SET lineage = "
        "(SELECT lineage FROM sluice_versions WHERE number = 4) WHERE number = 2"
    ],
    "lineage emptied": ["UPDATE sluice_versions SET lineage = '{}' WHERE number = 2"],
    "receipt edited": [
        "UPDATE sluice_receipts SET payload = replace(payload, '0.054', '0.154') "
        "WHERE gate = 'promotion'"
    ],
    "receipt of the POC gate edited": [
        "UPDATE sluice_receipts SET recorded_at = '2025-01-01T00:00:00.000000+00:00' "
        "WHERE gate = 'poc'"
    ],
    "link of the receipt deleted": [
        "DELETE FROM sluice_version_receipts WHERE number = 2 AND receipt IN "
        "(SELECT digest FROM sluice_receipts WHERE gate = 'promotion')"
    ],
    "log line of the version deleted": [
        "DELETE FROM sluice_log WHERE entity = 'sluice_versions' AND key LIKE '%, 2]'"
    ],
    "log line of another row deleted": ["DELETE FROM sluice_log WHERE number = 3"],
    "version and its log line edited": [
        "UPDATE sluice_versions SET registered_at = '2025-01-01T00:00:00.000000+00:00' "
        "WHERE number = 2",
        "UPDATE sluice_log SET content = 'f' || substr(content, 2) "
        "WHERE entity = 'sluice_versions' AND key LIKE '%, 2]'",
    ],
    "head of the log edited": ["UPDATE sluice_log_head SET lines = lines - 1"],
}

SQLITE_TRIGGERS: dict[str, Sequence[str]] = {
    "dropped": ["DROP TRIGGER sluice_versions_no_update"],
    "replaced by an empty trigger of the same name": [
        "DROP TRIGGER sluice_log_no_delete",
        "CREATE TRIGGER sluice_log_no_delete BEFORE DELETE ON sluice_log BEGIN SELECT 1; END",
    ],
    "moved to another table": [
        "DROP TRIGGER sluice_history_no_update",
        "CREATE TRIGGER sluice_history_no_update BEFORE UPDATE ON sluice_samples BEGIN "
        "SELECT RAISE(ABORT, 'sluice_history is append-only'); END",
    ],
    "trigger added that moves the pointer": [
        "CREATE TRIGGER later AFTER INSERT ON sluice_history BEGIN "
        "UPDATE sluice_pointers SET version = 4; END",
    ],
}
POSTGRESQL_TRIGGERS: dict[str, Sequence[str]] = {
    "dropped": ["DROP TRIGGER sluice_versions_append_only ON sluice_versions"],
    "disabled": ["ALTER TABLE sluice_versions DISABLE TRIGGER ALL"],
    "disabled except on replicas": [
        "ALTER TABLE sluice_versions ENABLE REPLICA TRIGGER sluice_versions_append_only"
    ],
    "function of the trigger emptied": [
        "CREATE OR REPLACE FUNCTION sluice_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RETURN NULL; END $$"
    ],
    "replaced by a conditional trigger": [
        "DROP TRIGGER sluice_versions_append_only ON sluice_versions",
        "CREATE TRIGGER sluice_versions_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON "
        "sluice_versions FOR EACH STATEMENT WHEN (false) EXECUTE FUNCTION sluice_append_only()",
    ],
    "replaced by a trigger for deletions only": [
        "DROP TRIGGER sluice_versions_append_only ON sluice_versions",
        "CREATE TRIGGER sluice_versions_append_only BEFORE DELETE ON sluice_versions "
        "FOR EACH STATEMENT EXECUTE FUNCTION sluice_append_only()",
    ],
}


def execute_statements(connection: sa.Connection, statements: Sequence[str]) -> None:
    is_sqlite = connection.dialect.name == "sqlite"
    for statement in statements:  # psycopg requires %% for a percent sign
        connection.exec_driver_sql(statement if is_sqlite else statement.replace("%", "%%"))


def drop_triggers(connection: sa.Connection) -> None:
    for table in APPEND_ONLY_TABLES:
        if connection.dialect.name == "sqlite":
            for action in ("update", "delete"):
                connection.exec_driver_sql(f"DROP TRIGGER {table.name}_no_{action}")
        else:
            connection.exec_driver_sql(f"DROP TRIGGER {table.name}_append_only ON {table.name}")


@dataclass
class Attacked:
    """A registry that an attacker can write: versions 1 and 2 promoted, 3 staging, 4 dev."""

    url: str
    ledger: RolloutLedger
    store: ArtifactStore

    def write(self, *statements: str, is_silent: bool = True) -> None:
        """Execute statements; if silent, drop the triggers before and restore them afterwards."""
        database = Database.open(self.url, create=False)
        with database.write() as connection:
            if is_silent:
                drop_triggers(connection)
            execute_statements(connection, statements)
            if is_silent:
                append_only.restore_triggers(connection)
        database.close()

    def load(self) -> int:
        """Return the version that a newly started server would serve."""
        split = LedgerTrafficSplit(self.ledger, MODEL).read()
        version = self.ledger.verified_version_of(MODEL, split.production)
        assert version is not None
        return version.number


def fill_registry(ledger: RolloutLedger, store: ArtifactStore) -> None:
    promote_chain(ledger, store, 2)
    two = ledger.version(MODEL, 2).candidate
    register_sample(ledger, store, salt=3, reference=two)
    ledger.register(MODEL, sample_lineage(store, salt=4), [])


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filled")
    url = f"sqlite:///{folder / 'registry.db'}"
    with RolloutLedger.open(url, clock=Clock()) as ledger:
        fill_registry(ledger, ArtifactStore(folder / "artifacts"))
    return folder


@pytest.fixture
def attacked(template: Path, tmp_path: Path) -> Iterator[Attacked]:
    """A copy of the template registry, in SQLite."""
    folder = tmp_path / "copy"
    shutil.copytree(template, folder)
    url = f"sqlite:///{folder / 'registry.db'}"
    with RolloutLedger.open(url, clock=Clock()) as ledger:
        yield Attacked(url, ledger, ArtifactStore(folder / "artifacts"))


@pytest.fixture
def attacked_on_any_database(url: str, store: ArtifactStore) -> Iterator[Attacked]:
    """A registry in SQLite, and in PostgreSQL if available."""
    with RolloutLedger.open(url, clock=Clock()) as ledger:
        fill_registry(ledger, store)
        yield Attacked(url, ledger, store)


@pytest.mark.parametrize("name", ATTACKS)
def test_server_rejects_a_manipulated_registry(attacked: Attacked, name: str) -> None:
    """A running server rejects it at the next poll, and a new server at its start."""
    source = LedgerTrafficSplit(attacked.ledger, MODEL, registry_check_interval_s=0.0)
    source.read()
    assert attacked.load() == 2

    attacked.write(*ATTACKS[name])

    with pytest.raises(RegistryInconsistent, match="sluice registry verify") as error:
        source.read()
    assert error.value.num_findings >= 1
    with pytest.raises(RegistryInconsistent):
        attacked.load()
    # Verify reports everything that the check of production reports.
    assert attacked.ledger.verify(MODEL, store=attacked.store) != []
    assert attacked.ledger.production_findings(MODEL) != []


def test_production_check_detects_every_attack_on_both_databases(
    attacked_on_any_database: Attacked,
) -> None:
    """Each attack runs in a transaction that is rolled back."""
    database = Database.open(attacked_on_any_database.url, create=False)
    missed = []
    with contextlib.suppress(UndoTransaction), database.write() as connection:
        for name, statements in ATTACKS.items():
            savepoint = connection.begin_nested()
            drop_triggers(connection)
            execute_statements(connection, statements)
            append_only.restore_triggers(connection)
            findings = production_check.check_production(connection, MODEL)
            savepoint.rollback()
            if not findings:
                missed.append(name)
        assert production_check.check_production(connection, MODEL) == []
        raise UndoTransaction
    database.close()

    assert missed == []


class UndoTransaction(Exception):
    """Rolls back a transaction."""


OPERATIONS: dict[str, Callable[[Attacked], object]] = {
    "promote": lambda registry: registry.ledger.promote(
        MODEL,
        3,
        expected=registry.ledger.production_number(MODEL),
        actor="a",
        reason="r",
        store=registry.store,
    ),
    "promote the version of the pointer": lambda registry: registry.ledger.promote(
        MODEL, 4, expected=4, actor="a", reason="r", store=registry.store
    ),
    "check whether a version is promotable": lambda registry: registry.ledger.require_promotable(
        MODEL, 3
    ),
    "roll back": lambda registry: registry.ledger.rollback(
        MODEL, expected=4, actor="a", reason="r", store=registry.store
    ),
    "start a rollout": lambda registry: registry.ledger.start_rollout(
        MODEL, 3, RolloutSettings(), actor="a", reason="r"
    ),
    "compare with production": lambda registry: registry.ledger.production(MODEL),
    "read the traffic split": lambda registry: registry.ledger.traffic_split(MODEL),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_rejects_a_moved_pointer(attacked: Attacked, operation: str) -> None:
    attacked.write(TO_DEV)

    with pytest.raises(IntegrityError, match="pointer is at version 4"):
        OPERATIONS[operation](attacked)

    assert [e.revision for e in attacked.ledger.history(MODEL) if e.revision is not None] == [1, 2]


def test_completed_rollout_is_neither_finished_nor_rolled_back_if_the_pointer_was_moved(
    attacked: Attacked,
) -> None:
    """The challenger is healthy, so the rollout keeps its phase."""
    ledger, clock = attacked.ledger, Clock()
    settings = RolloutSettings(strategy="ab", shares=(0.5,))
    started = ledger.start_rollout(MODEL, 3, settings, actor="a", reason="r").rollout
    completed = started.model_copy(
        update={
            "phase": "awaiting_promotion",
            "epoch": started.epoch + 1,
            "revision": started.revision + 1,
        }
    )
    ledger.record_transition(
        started,
        Transition(
            outcome="advance",
            rollout=completed,
            at=clock(),
            actor="a",
            reason="It held.",
            remedy="",
        ),
    )
    attacked.write("UPDATE sluice_pointers SET version = 4")

    with pytest.raises(IntegrityError, match="pointer is at version 4"):
        ledger.finish_rollout(MODEL, actor="a", store=attacked.store)

    assert ledger.rollout(MODEL) == completed


ROUTE_TO_DEV = (
    "UPDATE sluice_rollout_heads SET state = replace(replace(state, '{three}', '{four}'), "
    "'\"version\":3', '\"version\":4')",
    "UPDATE sluice_rollout_transitions SET payload = replace(replace(payload, '{three}', '{four}'),"
    " '\"version\":3', '\"version\":4')",
)


@pytest.mark.parametrize(
    "statements",
    [
        ROUTE_TO_DEV[:1],
        ROUTE_TO_DEV,
        (*ROUTE_TO_DEV, "UPDATE sluice_rollouts SET version = 4"),
        ("UPDATE sluice_rollouts SET receipt = (SELECT min(digest) FROM sluice_receipts)",),
        ("UPDATE sluice_versions SET lineage = replace(lineage, '0.643', '0.1') WHERE number = 3",),
    ],
    ids=["head", "head and transition", "all rows", "receipt", "lineage of the challenger"],
)
def test_manipulated_rollout_is_rejected_and_not_routed(
    attacked: Attacked, statements: Sequence[str]
) -> None:
    ledger = attacked.ledger
    three, four = (ledger.version(MODEL, number).candidate for number in (3, 4))
    ledger.start_rollout(MODEL, 3, RolloutSettings(), actor="a", reason="r")
    source = LedgerTrafficSplit(ledger, MODEL)
    assert source.read().challenger == three

    attacked.write(
        *(text.format(three=three, four=four) if "{three}" in text else text for text in statements)
    )

    if "receipt" not in statements[0]:  # the polled state changed, so the next poll rejects it
        with pytest.raises(RegistryInconsistent):
            source.read()
    with pytest.raises(RegistryInconsistent):
        ledger.traffic_split(MODEL)
    assert ledger.verify(MODEL, store=attacked.store) != []


def test_changed_triggers_are_reported_and_can_be_restored(
    attacked_on_any_database: Attacked,
) -> None:
    attacked = attacked_on_any_database
    trigger_attacks = SQLITE_TRIGGERS if attacked.url.startswith("sqlite") else POSTGRESQL_TRIGGERS
    for name, statements in trigger_attacks.items():
        attacked.write(*statements, is_silent=False)

        findings = attacked.ledger.verify(None, store=attacked.store)
        assert [finding.problem for finding in findings] == ["trigger"], name
        with pytest.raises(RegistryInconsistent, match="restore-triggers"):
            LedgerTrafficSplit(attacked.ledger, MODEL).read()

        assert attacked.ledger.restore_triggers() > 0
        assert attacked.ledger.verify(None, store=attacked.store) == [], name
    assert attacked.load() == 2


def test_triggers_are_not_restored_if_a_row_was_edited(attacked: Attacked) -> None:
    """Otherwise the command would hide that triggers were dropped to edit a row."""
    database = Database.open(attacked.url, create=False)
    with database.write() as connection:
        drop_triggers(connection)
        execute_statements(connection, ["UPDATE sluice_history SET actor = 'eve' WHERE id = 1"])
    database.close()

    with pytest.raises(RegistryInconsistent, match=r"sluice_history \[1\] does not match line"):
        attacked.ledger.restore_triggers()

    problems = {finding.problem for finding in attacked.ledger.verify(None, store=attacked.store)}
    assert problems == {"log", "trigger"}


def test_registry_check_is_repeated_after_a_change_or_the_interval(
    attacked_on_any_database: Attacked,
) -> None:
    """The repeated check finds an edit that does not affect the polled state."""
    attacked = attacked_on_any_database
    rare = LedgerTrafficSplit(attacked.ledger, MODEL, registry_check_interval_s=3600)
    frequent = LedgerTrafficSplit(attacked.ledger, MODEL, registry_check_interval_s=0.0)
    before = rare.read()
    assert frequent.read() == before

    attacked.write(*ATTACKS["actor of a move edited"])
    # In SQLite the dropped triggers change the schema, which the poll detects as a change.
    if attacked.url.startswith("postgresql"):
        assert rare.read() == before
    with pytest.raises(RegistryInconsistent):
        frequent.read()

    attacked.write("UPDATE sluice_pointers SET revision = revision + 1")
    with pytest.raises(RegistryInconsistent):
        rare.read()


def test_repaired_registry_is_accepted_again(attacked: Attacked) -> None:
    source = LedgerTrafficSplit(attacked.ledger, MODEL)
    before = source.read()
    attacked.write("UPDATE sluice_pointers SET version = 4")
    with pytest.raises(RegistryInconsistent):
        source.read()

    attacked.write("UPDATE sluice_pointers SET version = 2")

    assert source.read() == before


def test_registry_has_no_findings_after_every_kind_of_move(attacked: Attacked) -> None:
    """Moves: promotion, rollback, reinstatement, started and aborted rollout; two models."""
    ledger, store = attacked.ledger, attacked.store
    ledger.register("other", sample_lineage(store, salt=6, model="other"), [])
    ledger.promote(MODEL, 3, expected=2, actor="a", reason="r", store=store)
    ledger.rollback(MODEL, expected=3, actor="a", reason="r", store=store)
    ledger.promote(MODEL, 3, expected=2, actor="a", reason="r", store=store, reinstate=True)
    ledger.rollback(MODEL, expected=3, actor="a", reason="r", store=store)
    number = register_sample(ledger, store, salt=7, reference=ledger.version(MODEL, 2).candidate)
    started = ledger.start_rollout(MODEL, number, RolloutSettings(), actor="a", reason="r")
    assert ledger.production_findings(MODEL) == []
    ledger.record_transition(
        started.rollout,
        transitions.abort(started.rollout, now=Clock()(), actor="a", reason="r"),
    )

    assert ledger.production_findings(MODEL) == ledger.production_findings("other") == []
    assert ledger.verify(None, store=store) == []
    assert attacked.load() == 2


def test_lineage_edited_after_the_check_is_not_loaded(
    attacked: Attacked,
) -> None:
    split = LedgerTrafficSplit(attacked.ledger, MODEL).read()
    attacked.write(*ATTACKS["metrics in the lineage edited"])

    with pytest.raises(RegistryInconsistent, match="does not match line"):
        LedgerModels(attacked.ledger, MODEL, attacked.store).load(split.production)


def test_serve_reports_a_moved_pointer_and_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error contains the finding and the command that lists all findings."""
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.delenv("SLUICE_REGISTRY_URL", raising=False)
    home = Home.from_environment({"SLUICE_HOME": str(tmp_path)}, cwd=tmp_path)
    store = ArtifactStore(home.artifacts)
    with RolloutLedger.open(home.registry_url, clock=Clock()) as ledger:
        promote_chain(ledger, store, 1)
        ledger.register(MODEL, sample_lineage(store, salt=4), [])
        Attacked(home.registry_url, ledger, store).write(
            "UPDATE sluice_pointers SET version = 2, revision = 2"
        )

    assert run_command(["serve", MODEL, "--port", "0"]) == 2

    error_text = " ".join(capsys.readouterr().err.split())
    assert (
        "the pointer is at version 2 after 2 moves, but the history ends with version 1"
        in error_text
    )
    assert "sluice registry verify" in error_text
