"""Queries are read-only: attacks on real SQLite files and a real PostgreSQL server."""

import sqlite3
import uuid
from pathlib import Path

import pytest
import sqlalchemy as sa

from sluice.base.errors import SourceError
from sluice.data.source_settings import SqlSource
from sluice.data.sql_session import READER_GRANTS, open_read_only
from tests.sluice.data.test_sql_source import QUERY, execute_sql, get_error_message, read_rows
from tests.sluice.data.test_sql_source import url as url

ENDLESS_CTE = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"


@pytest.fixture
def postgres(request) -> str:
    """URL of a new schema on the server, with a table of three bars."""
    server = str(request.getfixturevalue("postgres_server"))
    name = f"s{uuid.uuid4().hex[:12]}"
    schema_url = f"{server}&options=-csearch_path%3D{name}"
    rows = "('2020-01-02', 1.5, 10), ('2020-01-03', 2.5, 20), ('2020-01-06', 3.5, 30)"
    execute_sql(server, f"CREATE SCHEMA {name}")
    execute_sql(
        schema_url,
        "CREATE TABLE bars (date DATE, close NUMERIC(12, 4), volume BIGINT)",
        f"INSERT INTO bars VALUES {rows}",
        "CREATE SEQUENCE counter",
        "CREATE FUNCTION erase() RETURNS int LANGUAGE plpgsql AS "
        "'BEGIN DELETE FROM bars; RETURN 1; END'",
    )
    return schema_url


@pytest.mark.slow
@pytest.mark.parametrize(
    "attack",
    [
        "COMMIT; DELETE FROM bars; COMMIT; SELECT 1 AS date, 1 AS close",
        "SELECT date, close FROM bars; SELECT date, close FROM bars",
        "SELECT date, close FROM bars; COMMIT; BEGIN READ WRITE; DELETE FROM bars; COMMIT",
        "ROLLBACK; DELETE FROM bars",
        "COMMIT",
        "COPY (SELECT 1) TO PROGRAM 'touch {file}'",
        "COPY bars TO '{file}'",
        "SELECT 1 AS date; COPY (SELECT 1) TO PROGRAM 'touch {file}'",
        "WITH gone AS (DELETE FROM bars RETURNING *) SELECT * FROM gone",
        "DELETE FROM bars RETURNING *",
        "SELECT erase() AS date, 1 AS close",
        "SELECT nextval('counter') AS date, 1 AS close",
        "SELECT set_config('transaction_read_only', 'off', false) AS date, erase() AS close",
        "SELECT date, close INTO other FROM bars",
        "CREATE TABLE other AS SELECT * FROM bars",
        "SELECT * FROM bars FOR UPDATE",
        "EXPLAIN ANALYZE DELETE FROM bars",
        "DO 'BEGIN DELETE FROM bars; END'",
        "CALL erase()",
        "PREPARE TRANSACTION 'x'",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
        "SET TRANSACTION READ WRITE",
        "LISTEN x",
        "LOCK TABLE bars",
        "FETCH ALL FROM bars",
    ],
)
def test_postgresql_attack_fails_and_changes_nothing(postgres, attack):
    file = Path("/tmp") / f"sluice-attack-{uuid.uuid4().hex}"

    message = get_error_message(postgres, attack.format(file=file))

    assert "failed: " in message
    assert not file.exists()
    assert len(read_rows(postgres)) == 3
    assert "other" in get_error_message(postgres, "SELECT * FROM other")


@pytest.mark.slow
def test_url_option_that_disables_read_only_is_rejected(postgres):
    attack = "WITH a AS (SELECT 1 AS date, 1 AS close) SELECT date, erase() AS close FROM a"

    for option in ("autocommit=1", "options=-cdefault_transaction_read_only%3Doff"):
        address = postgres.partition("&options")[0] + f"&{option}"
        get_error_message(address, attack)

    assert len(read_rows(postgres)) == 3


@pytest.mark.slow
def test_timeout_covers_the_query_and_all_fetches(postgres):
    slow = "SELECT DATE '2020-01-01' + i AS date, 1 AS close FROM generate_series(1, 90) i"

    assert "within timeout_s = 0.2 s" in get_error_message(
        postgres, f"{slow}, pg_sleep(30) AS s", timeout_s=0.2
    )
    # Each row takes 0.05 s, and the query itself disables the server-side statement timeout.
    row_by_row_query = slow.replace(
        " 1 AS close", " set_config('statement_timeout', '0', false), pg_sleep(0.05)::text"
    )
    assert "within timeout_s = 0.3 s" in get_error_message(
        postgres, row_by_row_query, timeout_s=0.3
    )


@pytest.mark.slow
def test_role_with_reader_grants_can_read_but_not_call_dangerous_functions(postgres):
    role, schema = f"r{uuid.uuid4().hex[:8]}", postgres.rpartition("%3D")[2]
    execute_sql(postgres, *READER_GRANTS.format(role=role, schema=schema).strip().split("\n"))
    address = postgres.replace("sluice@", f"{role}@")

    assert len(read_rows(address)) == 3
    for call in (
        "pg_read_file('/etc/hostname')",
        "lo_export(1, '/tmp/x')",
        "pg_ls_dir('/')::text",
        "pg_reload_conf()",
    ):
        assert "permission denied" in get_error_message(
            address, f"SELECT {call} AS date, 1 AS close"
        )
    engine = sa.create_engine(address.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection, pytest.raises(sa.exc.InternalError, match="read-only"):
        connection.exec_driver_sql("DELETE FROM bars")
    engine.dispose()


def test_unsupported_postgresql_driver_is_rejected():
    pytest.importorskip("psycopg", reason="psycopg is not installed (extra: postgres)")

    message = get_error_message("postgresql+psycopg_async://u@localhost:1/x")

    assert "must be read with the driver psycopg, got psycopg_async" in message


@pytest.mark.filterwarnings("ignore:No driver name specified")
def test_asynchronous_driver_is_rejected():
    source = SqlSource(url="mssql+aioodbc://u@h/x", query=QUERY)
    engine = sa.create_engine(source.url, module=sqlite3)

    with pytest.raises(SourceError, match="with a synchronous driver, got aioodbc"):
        open_read_only(engine, source)


@pytest.fixture
def file(tmp_path) -> Path:
    """A SQLite file with three bars."""
    path = tmp_path / "bars.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE bars (date TEXT, close REAL, volume INT)")
    connection.executemany("INSERT INTO bars VALUES (?, 1, 1)", [("2020-01-02",)] * 3)
    connection.commit()
    connection.close()
    return path


@pytest.mark.parametrize(
    "attack",
    [
        "ATTACH DATABASE '{folder}/new.db' AS n",
        "VACUUM INTO '{folder}/copy.db'",
        "PRAGMA query_only = OFF",
        "PRAGMA journal_mode = WAL",
        "PRAGMA user_version = 7",
        "PRAGMA writable_schema = ON",
        "SELECT date, close FROM bars; DELETE FROM bars",
        "COMMIT; DELETE FROM bars",
        "COMMIT",
        "DELETE FROM bars RETURNING date, close",
        "WITH x AS (SELECT 1) DELETE FROM bars RETURNING date, close",
        "REINDEX",
        "CREATE TEMP TABLE t AS SELECT * FROM bars",
        "SELECT load_extension('{folder}/x.so') AS date, 1 AS close",
        "SELECT fts3_tokenizer('x') AS date, 1 AS close",
        "SELECT name AS date, 1 AS close FROM pragma_database_list",
        "SELECT zeroblob(900000000) AS date, 1 AS close",
    ],
)
def test_sqlite_attack_fails_and_changes_no_file(file, attack):
    before = {path.name: path.read_bytes() for path in file.parent.iterdir()}

    get_error_message(f"sqlite:///{file}", attack.format(folder=file.parent), max_bytes=1024**2)

    assert {path.name: path.read_bytes() for path in file.parent.iterdir()} == before


@pytest.mark.parametrize("name", ["{}", "file:{}?uri=true", "file:{}?mode=rwc&uri=true"])
def test_sqlite_file_is_opened_read_only_for_every_url_form(file, name):
    assert read_rows(f"sqlite:///{name.format(file)}")["close"].tolist() == [1.0] * 3
    get_error_message(f"sqlite:///{name.format(file)}", "DELETE FROM bars")
    missing = file.with_name("none.db")
    if "file:" in name:
        assert "unable to open" in get_error_message(f"sqlite:///{name.format(missing)}")
    assert [path.name for path in file.parent.iterdir()] == ["bars.db"]


def test_sqlite_file_with_write_ahead_log_is_read(file):
    writer = sqlite3.connect(file)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("UPDATE bars SET close = 2")
    writer.commit()

    assert read_rows(f"sqlite:///{file}")["close"].tolist() == [2.0] * 3
    writer.close()
    assert read_rows(f"sqlite:///{file}")["close"].tolist() == [2.0] * 3


def test_endless_query_is_stopped_at_the_timeout(url):
    query = f"{ENDLESS_CTE} SELECT '2020-01-01' AS date, count(*) AS close FROM n"

    assert "within timeout_s = 0.2 s" in get_error_message(url, query, timeout_s=0.2)


def test_endless_rows_are_stopped_at_max_bytes(url):
    query = f"{ENDLESS_CTE} SELECT '2020-01-01' AS date, i AS close FROM n"

    message = get_error_message(url, query, max_bytes=1024**2)

    assert "at most max_bytes = 1,048,576 bytes" in message
    assert "'max_bytes'" in message


def test_limits_below_their_minimum_are_rejected():
    for limit in ({"timeout_s": 0.0}, {"max_bytes": 1023}):
        with pytest.raises(ValueError, match="greater than"):
            SqlSource(url="sqlite:///x.db", query=QUERY, **limit)
