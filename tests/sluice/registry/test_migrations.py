"""A registry made by the first schema opens, keeps everything, and gets its log."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from sluice.artifacts import ArtifactStore
from sluice.errors import StorageError
from sluice.registry import log, migrations
from sluice.registry.database import Database
from sluice.registry.ledger import Ledger
from tests.sluice.registry.ledger_samples import MODEL, NOW, Clock, sample_lineage

OLD = Path(__file__).with_name("schema_1")
"""Tables and rows as the first schema had them: versions 1 to 3 promoted, then back to 2."""


def make_old(url: str) -> sa.Engine:
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    name = engine.dialect.name
    with engine.begin() as connection:
        raw = connection.connection.driver_connection
        assert raw is not None
        tables, rows = ((OLD / f"{n}.sql").read_text() for n in (name, "rows"))
        if name == "sqlite":
            raw.executescript(tables + rows)
        else:
            raw.execute(tables)
            raw.execute(rows)
            for table in ("recordings", "version_receipts", "decisions", "history"):
                raw.execute(f"SELECT setval('sluice_{table}_id_seq', max(id)) FROM sluice_{table}")
    return engine


@pytest.fixture
def old(url: str, store: ArtifactStore) -> str:
    for salt in (1, 2, 3):
        sample_lineage(store, salt=salt)
    make_old(url).dispose()
    return url


def later() -> Clock:
    return Clock(NOW.replace(year=2026))


def test_old_registry_keeps_everything_and_verifies(old: str, store: ArtifactStore) -> None:
    with Ledger.open(old, clock=later(), create=False) as ledger:
        assert ledger.verify(None, store=store) == []
        assert [v.state for v in ledger.versions(MODEL)] == ["archived", "production", "archived"]
        assert len(ledger.history(MODEL)) == 7
        assert ledger.rollback(MODEL, expected=2, actor="a", reason="r", store=store).version == 1
        assert ledger.verify(None, store=store) == []


def test_old_history_is_not_told_to_the_mirror_again(old: str, store: ArtifactStore) -> None:
    told: list[str] = []
    with Ledger.open(old, clock=later()) as ledger:
        ledger.rollback(MODEL, expected=2, actor="a", reason="r", store=store)
        from sluice.registry.outbox import Delivery

        ledger.publish(
            MODEL,
            migrations.MIRROR,
            lambda e: (told.append(e.entry.action), Delivery(ok=True, reason=""))[1],
        )

    assert told == ["rollback"]


def test_migrated_rows_are_guarded_and_logged(old: str, store: ArtifactStore) -> None:
    database = Database.open(old, create=False)
    with pytest.raises(StorageError, match="append-only"), database.write() as connection:
        connection.execute(sa.text("UPDATE sluice_models SET name = 'x'"))
    with database.read() as connection:
        head = log.load_head(connection)
    database.close()

    # 1 model, 5 receipts, 3 versions, 5 recordings, 6 links, 3 decisions, 7 lines of history
    assert head.lines == 30


def test_migration_happens_once_when_several_open_at_once(old: str, store: ArtifactStore) -> None:
    def open_one(_: int) -> int:
        with Ledger.open(old, clock=later()) as ledger:
            return len(ledger.history(MODEL))

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(open_one, range(6))) == [7] * 6
    with Ledger.open(old, clock=later()) as ledger:
        assert ledger.verify(None, store=store) == []


class Killed(BaseException):
    """Stands for a process that ends here."""


def test_migration_that_dies_anywhere_leaves_the_old_schema_whole(
    old: str, store: ArtifactStore
) -> None:
    """Every statement of it in turn; each time the next open sees the first schema."""
    engine = sa.create_engine(old.replace("postgresql:", "postgresql+psycopg:"))
    deaths = 0
    for step in range(1, 200):
        plain = engine.connect()
        transaction = plain.begin()
        if die_at(plain, step, migrations.bring_up_to_date):
            transaction.rollback()
            plain.close()
            break
        transaction.rollback()
        plain.close()
        deaths += 1
        with engine.connect() as connection:
            assert migrations.schema_version(connection) == 1
            assert not sa.inspect(connection).has_table("sluice_log")
    engine.dispose()

    assert deaths > 15
    with Ledger.open(old, clock=later()) as ledger:
        assert ledger.verify(None, store=store) == []


def die_at(connection: sa.Connection, step: int, work: Callable[[sa.Connection], object]) -> bool:
    """Run ``work`` and stop it at its ``step``-th statement; say whether it finished before."""
    count = 0

    def touch(*_: object) -> None:
        nonlocal count
        count += 1
        if count == step:
            raise Killed

    sa.event.listen(connection, "before_cursor_execute", touch)
    try:
        work(connection)
    except Killed:
        return False
    finally:
        sa.event.remove(connection, "before_cursor_execute", touch)
    return True
