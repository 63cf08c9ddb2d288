"""Migration of registries with older schemas: content, log, triggers and crashes."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import StorageError
from sluice.registry import log, migrations, tables
from sluice.registry.database import Database
from sluice.registry.ledger import Ledger
from sluice.registry.outbox import Delivery
from sluice.registry.records import HistoryEvent
from sluice.registry.rollouts import RolloutLedger
from sluice.registry.signing import SigningKey
from tests.sluice.registry.ledger_samples import MODEL, NOW, Clock, sample_lineage

SCHEMA_1 = Path(__file__).with_name("schema_1")
"""SQL of schema 1: versions 1 to 3 were promoted, then 3 was rolled back to 2."""


def create_schema_1(url: str) -> sa.Engine:
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    name = engine.dialect.name
    with engine.begin() as connection:
        raw = connection.connection.driver_connection
        assert raw is not None
        tables, rows = ((SCHEMA_1 / f"{n}.sql").read_text() for n in (name, "rows"))
        if name == "sqlite":
            raw.executescript(tables + rows)
        else:
            raw.execute(tables)
            raw.execute(rows)
            for table in ("recordings", "version_receipts", "decisions", "history"):
                raw.execute(f"SELECT setval('sluice_{table}_id_seq', max(id)) FROM sluice_{table}")
    return engine


@pytest.fixture
def schema_1_url(url: str, store: ArtifactStore) -> str:
    for salt in (1, 2, 3):
        sample_lineage(store, salt=salt)
    create_schema_1(url).dispose()
    return url


def make_later_clock() -> Clock:
    return Clock(NOW.replace(year=2026))


def test_migrated_registry_keeps_its_content_and_verifies(
    schema_1_url: str, store: ArtifactStore
) -> None:
    with Ledger.open(schema_1_url, clock=make_later_clock(), create=False) as ledger:
        assert ledger.verify(None, store=store) == []
        assert [v.state for v in ledger.versions(MODEL)] == ["archived", "production", "archived"]
        assert len(ledger.history(MODEL)) == 7
        assert ledger.rollback(MODEL, expected=2, actor="a", reason="r", store=store).version == 1
        assert ledger.verify(None, store=store) == []


def test_migrated_history_is_not_published_to_the_mirror_again(
    schema_1_url: str, store: ArtifactStore
) -> None:
    delivered: list[str] = []

    def deliver(event: HistoryEvent) -> Delivery:
        delivered.append(event.entry.action)
        return Delivery(ok=True, reason="")

    with Ledger.open(schema_1_url, clock=make_later_clock()) as ledger:
        ledger.rollback(MODEL, expected=2, actor="a", reason="r", store=store)
        ledger.publish(MODEL, migrations.MIRROR_CONSUMER, deliver)

    assert delivered == ["rollback"]


def test_migrated_rows_are_append_only_and_logged(schema_1_url: str) -> None:
    database = Database.open(schema_1_url, create=False)
    with pytest.raises(StorageError, match="append-only"), database.write() as connection:
        connection.execute(sa.text("UPDATE sluice_models SET name = 'x'"))
    with database.read() as connection:
        head = log.load_head(connection)
    database.close()

    # 1 model, 5 receipts, 3 versions, 5 recordings, 6 links, 3 decisions, 7 lines of history
    assert head.num_lines == 30


def test_concurrent_opens_migrate_once(schema_1_url: str, store: ArtifactStore) -> None:
    def count_history(_: int) -> int:
        with Ledger.open(schema_1_url, clock=make_later_clock()) as ledger:
            return len(ledger.history(MODEL))

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(count_history, range(6))) == [7] * 6
    with Ledger.open(schema_1_url, clock=make_later_clock()) as ledger:
        assert ledger.verify(None, store=store) == []


def test_migration_from_schema_2_adds_rollouts_and_keeps_content(
    schema_1_url: str, store: ArtifactStore
) -> None:
    engine = sa.create_engine(schema_1_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        migrations.STEPS[1](connection)
        connection.execute(sa.update(tables.schema_version).values(number=2))
        assert not sa.inspect(connection).has_table("sluice_rollouts")
    engine.dispose()

    with RolloutLedger.open(schema_1_url, clock=make_later_clock()) as ledger:
        assert ledger.rollout(MODEL) is None
        split = ledger.traffic_split(MODEL)
        assert split is not None
        assert split.production == ledger.version(MODEL, 2).candidate
        assert len(ledger.history(MODEL)) == 7
        assert ledger.verify(None, store=store) == []
        receipt = ledger.receipts(MODEL, 2)[0].receipt.digest
    row = {"id": "r", "model": MODEL, "version": 2, "receipt": receipt, "settings": "{}"}
    database = Database.open(schema_1_url, create=False)
    with database.write() as connection:
        log.append(connection, tables.rollouts, **row, started_at=NOW)
    with pytest.raises(StorageError, match="append-only"), database.write() as connection:
        connection.execute(sa.delete(tables.rollouts))
    database.close()


def test_migration_from_schema_4_adds_own_lineages(schema_1_url: str, store: ArtifactStore) -> None:
    Ledger.open(schema_1_url, clock=make_later_clock()).close()
    engine = sa.create_engine(schema_1_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE sluice_own_lineages"))
        connection.execute(sa.update(tables.schema_version).values(number=4))
    engine.dispose()

    with Ledger.open(schema_1_url, clock=make_later_clock()) as ledger:
        assert ledger.version(MODEL, 2).state == "production"
        assert ledger.verify(None, store=store) == []
    row = {"model": MODEL, "number": 2, "lineage": "{}", "registered_at": NOW}
    database = Database.open(schema_1_url, create=False)
    with database.write() as connection:
        log.append(connection, tables.local_lineages, **row)
    with pytest.raises(StorageError, match="append-only"), database.write() as connection:
        connection.execute(sa.delete(tables.local_lineages))
    database.close()


def test_migration_from_schema_5_keeps_signatures(schema_1_url: str, store: ArtifactStore) -> None:
    key = SigningKey(b"k" * 32)
    with Ledger.open(schema_1_url, clock=make_later_clock(), key=key) as ledger:
        head, _ = ledger.unsigned_lines()
    engine = sa.create_engine(schema_1_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE sluice_refusals"))
        for column in ("since", "kind", "actor"):
            connection.execute(sa.text(f"ALTER TABLE sluice_signatures DROP COLUMN {column}"))
        if engine.dialect.name == "postgresql":
            narrow = "ALTER TABLE sluice_signatures ALTER COLUMN signature TYPE VARCHAR(64)"
            connection.execute(sa.text(narrow))
        signature = key.sign("log head", f"{head.num_lines} {head.digest}")
        values = f"'{key.key_id}', {head.num_lines}, '{head.digest}', '{signature}', '{NOW}'"
        connection.execute(
            sa.text(
                "INSERT INTO sluice_signatures (key_id, line, digest, signature, signed_at) "
                f"VALUES ({values})"
            )
        )
        connection.execute(sa.update(tables.schema_version).values(number=5))
    engine.dispose()

    with Ledger.open(schema_1_url, clock=make_later_clock(), key=key) as ledger:
        assert ledger.verify(None, store=store, key=key) == []
        ledger.rollback(MODEL, expected=2, actor="a", reason="r", store=store)
        assert ledger.verify(None, store=store, key=key) == []


class Killed(BaseException):
    """Simulates the end of the process at this point."""


@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_crash_during_migration_leaves_the_old_schema_intact(
    stride: int, schema_1_url: str, store: ArtifactStore
) -> None:
    """Crash at every ``stride``-th statement; schema 1 must remain intact."""
    engine = sa.create_engine(schema_1_url.replace("postgresql:", "postgresql+psycopg:"))
    step = 1
    while is_killed_at(step, schema_1_url):
        with engine.connect() as connection:
            assert migrations.schema_version(connection) == 1
            assert not sa.inspect(connection).has_table("sluice_log")
        step += stride
    engine.dispose()

    assert step > 25
    with Ledger.open(schema_1_url, clock=make_later_clock()) as ledger:
        assert ledger.verify(None, store=store) == []


def is_killed_at(step: int, url: str) -> bool:
    """Open the registry, crash at its ``step``-th statement; return whether it was reached."""
    count = 0

    def count_statement(*_: object) -> None:
        nonlocal count
        count += 1
        if count == step:
            raise Killed

    sa.event.listen(sa.Engine, "before_cursor_execute", count_statement)
    try:
        Database.open(url, create=False).close()
    except Killed:
        return True
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", count_statement)
    return False
