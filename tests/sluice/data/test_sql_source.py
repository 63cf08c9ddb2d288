"""Loading of rows with an SQL query, on SQLite and on a PostgreSQL server (DATA-2)."""

import datetime as dt
import uuid
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sqlalchemy as sa

from sluice.base.errors import SettingsError, SourceError
from sluice.data.schema import Column, Schema
from sluice.data.source_settings import SqlSource
from sluice.data.sources import load_rows
from sluice.data.validation import validate_schema
from sluice.workloads.bars import BarsSettings
from tests.support.sqlite_files import sqlite_file

SCHEMA = Schema(
    columns=(Column(name="close"), Column(name="volume")),
    index_name="date",
    index_kind="datetime",
)
QUERY = "SELECT date, close, volume FROM bars ORDER BY date"
DAYS = pd.DatetimeIndex(["2020-01-02", "2020-01-03", "2020-01-06"], name="date")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def url(request, tmp_path: Path) -> str:
    """URL of a new database (SQLite) or schema (PostgreSQL) with a table of three bars."""
    if request.param == "sqlite":
        path = tmp_path / "bars.db"
        database_url = f"sqlite:///{path}"
        column_types = "date TEXT, close REAL, volume NUMERIC, note TEXT"
    else:
        server = str(request.getfixturevalue("postgres_server"))
        name = f"s{uuid.uuid4().hex[:12]}"
        database_url = f"{server}&options=-csearch_path%3D{name}"
        column_types = "date DATE, close NUMERIC(12, 4), volume BIGINT, note TEXT"
        execute_sql(server, f"CREATE SCHEMA {name}")
    rows = "('2020-01-02', 1.5, 10, 'a'), ('2020-01-03', 2.5, 20, 'b'), ('2020-01-06', 3.5, 30, '')"
    execute_sql(
        database_url, f"CREATE TABLE bars ({column_types})", f"INSERT INTO bars VALUES {rows}"
    )
    return database_url


def execute_sql(url: str, *statements: str) -> None:
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


def read_rows(url: str, query: str = QUERY, **settings: object) -> pd.DataFrame:
    return load_rows(SqlSource(url=url, query=query, **settings), schema=SCHEMA)


def get_error_message(url: str, query: str = QUERY, **settings: object) -> str:
    with pytest.raises(SourceError) as caught:
        read_rows(url, query, **settings)
    assert caught.value.fix
    return str(caught.value)


def test_query_result_has_numeric_columns_and_dates(url):
    rows = read_rows(url)

    assert rows.index.equals(DAYS)
    assert rows.index.name == "date"
    assert rows["close"].tolist() == [1.5, 2.5, 3.5]
    assert rows["volume"].dtype == np.float64
    validate_schema(rows, SCHEMA, "raw")


def test_index_and_column_names_are_configurable(url):
    query = "SELECT date AS day, close AS last, volume, note FROM bars ORDER BY date DESC"

    rows = read_rows(url, query, index="day", rename={"last": "close"})

    assert rows["close"].tolist() == [3.5, 2.5, 1.5]
    assert list(rows.columns) == ["close", "volume", "note"]
    assert rows.index.name == "date"


def test_sql_null_becomes_nan(url):
    execute_sql(url, "UPDATE bars SET close = NULL WHERE volume = 20")

    assert read_rows(url)["close"].isna().tolist() == [False, True, False]


def test_percent_signs_and_escaped_colons_in_query_are_literal(url):
    with_percent = QUERY.replace("ORDER", "WHERE note LIKE 'a%' AND note <> '12:30:00' ORDER")
    with_colon = QUERY.replace("ORDER", r"WHERE note <> 'x \:y' ORDER")

    assert len(read_rows(url, with_percent)) == 1
    assert len(read_rows(url, with_colon)) == 3
    assert "'y'" in get_error_message(url, with_colon.replace("\\", ""))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT * FROM baars", "baars"),
        ("SELECT date, closing FROM bars", "closing"),
        ("SELEC date FROM bars", "syntax error"),
    ],
)
def test_database_error_message_is_quoted_in_one_line(url, query, expected):
    message = get_error_message(url, query)

    assert "failed: " in message
    assert expected in message
    assert len(message.splitlines()) == 1


def test_missing_column_error_suggests_the_nearest_name(url):
    assert "has no column 'dates' (nearest: 'date')" in get_error_message(url, index="dates")
    assert "has no column 'Close' (nearest: 'close')" in get_error_message(
        url, rename={"Close": "x"}
    )


def test_duplicate_column_name_is_rejected(url):
    assert "more than one column 'close'" in get_error_message(
        url, "SELECT date, close, close FROM bars"
    )


def test_a_result_without_rows_is_rejected(url):
    assert "at least one row" in get_error_message(
        url, "SELECT date, close FROM bars WHERE volume < 0"
    )


def test_text_in_numeric_column_is_reported_with_its_row(url):
    message = get_error_message(url, "SELECT date, note AS close FROM bars ORDER BY date")

    assert "column 'close' must be numeric, got 'a' at row 0" in message


def test_unparsable_date_is_reported_with_its_row(url):
    message = get_error_message(url, "SELECT note AS date, close FROM bars ORDER BY volume")

    assert (
        "column 'date' must contain dates in the format ISO 8601 (2024-12-31), got 'a' at row 0"
        in message
    )


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE bars",
        "DELETE FROM bars",
        "INSERT INTO bars (close) VALUES (1.0)",
        "DELETE FROM bars RETURNING date, close, volume",
        "CREATE TABLE other (x INT)",
    ],
)
def test_statement_that_writes_is_rejected_and_changes_nothing(url, statement):
    message = get_error_message(url, statement)

    assert "read" in message
    assert len(read_rows(url)) == 3
    assert "other" in get_error_message(url, "SELECT * FROM other")


def test_statement_without_result_is_rejected(url):
    statement = "PRAGMA foreign_keys = ON" if url.startswith("sqlite") else "SET search_path = x"

    assert "is not a single SELECT" in get_error_message(url, statement)


def test_missing_database_file_is_reported_and_not_created(tmp_path):
    (tmp_path / "bars.db").touch()

    message = get_error_message(f"sqlite:///{tmp_path}/brs.db")

    assert "There is no database file" in message
    assert "Did you mean 'bars.db'?" in message
    assert not (tmp_path / "brs.db").exists()


def test_missing_folder_error_shows_the_variable_instead_of_its_value(tmp_path, monkeypatch):
    monkeypatch.setenv("BARS_FOLDER", f"{tmp_path}/secret")

    message = get_error_message("sqlite:///${BARS_FOLDER}/bars.db")

    assert "The folder ${BARS_FOLDER} does not exist or cannot be listed" in message
    assert "secret" not in message


def test_file_that_is_not_a_database_is_reported(tmp_path):
    path = tmp_path / "bars.db"
    path.write_bytes(b"text, and more of it than the header of a database has" * 20)

    assert "not a database" in get_error_message(f"sqlite:///{path}")


@pytest.mark.parametrize(
    "wrong", ["bars.db", "postgresql://host:port/x", "://x", "postgresql://h:${PORT}/x"]
)
def test_invalid_url_is_rejected(wrong, monkeypatch):
    monkeypatch.setenv("PORT", "five")

    assert f"must be an SQLAlchemy URL, got {wrong}." in get_error_message(wrong)


@pytest.mark.parametrize("driver", ["oracle+cx_oracle", "postgresql+nosuch", "nosuch"])
def test_driver_that_is_not_installed_is_reported(driver):
    message = get_error_message(f"{driver}://u@h/x")

    assert driver in message
    assert "not installed" in message


def test_unreachable_server_is_reported_without_its_password(monkeypatch):
    pytest.importorskip("psycopg", reason="psycopg is not installed (extra: postgres)")
    monkeypatch.setenv("BARS_PASSWORD", "s3c:ret/@")
    url = "postgresql://ada:${BARS_PASSWORD}@localhost:1/x?connect_timeout=2"

    message = get_error_message(url)

    assert f"The database {url} cannot be reached: " in message
    assert "s3c" not in message


def test_password_in_a_url_variable_is_masked_in_the_error(monkeypatch):
    """The password is a word of the driver's message ('Connection refused') and is masked there."""
    pytest.importorskip("psycopg", reason="psycopg is not installed (extra: postgres)")
    monkeypatch.setenv("BARS_URL", "postgresql://ada:refused@localhost:1/x?connect_timeout=2")

    message = get_error_message("${BARS_URL}")

    assert "Connection ***" in message
    assert "ada" not in message


def test_variable_value_repeated_by_the_driver_is_replaced_by_its_name(monkeypatch):
    pytest.importorskip("psycopg", reason="psycopg is not installed (extra: postgres)")
    monkeypatch.setenv("BARS_SECRET", "s3cret")

    message = get_error_message("postgresql://ada@localhost:1/x?connect_timeout=${BARS_SECRET}")

    assert message.count("${BARS_SECRET}") == 2
    assert "s3cret" not in message


def test_unknown_driver_option_is_reported(url):
    message = get_error_message(f"{url}{'&' if '?' in url else '?'}nosuch=1")

    assert "cannot be reached" in message
    assert "nosuch" in message


def test_variables_are_resolved_at_load_time_and_not_stored(url, monkeypatch):
    source = SqlSource(url="${BARS_URL}", query=QUERY)
    monkeypatch.setenv("BARS_URL", url)

    assert len(load_rows(source, schema=SCHEMA)) == 3

    assert source.model_dump(mode="json")["url"] == "${BARS_URL}"
    assert SqlSource.model_validate(source.model_dump()) == source
    assert "${BARS_URL} failed" in get_error_message("${BARS_URL}", "SELECT 1 FROM nosuch")


def test_part_of_a_url_may_be_a_variable(tmp_path, monkeypatch):
    path = tmp_path / "a b" / "bars.db"
    path.parent.mkdir()
    with sqlite_file(path) as connection:
        connection.execute("CREATE TABLE bars AS SELECT '2020-01-02' AS date, 1 AS close")
    connection.close()
    monkeypatch.setenv("BARS_FOLDER", str(path.parent))

    rows = read_rows("sqlite:///${BARS_FOLDER}/bars.db", "SELECT * FROM bars")

    assert rows["close"].tolist() == [1.0]


@pytest.mark.parametrize(("value", "expected"), [(None, "is not set"), ("", "is empty")])
def test_unset_or_empty_variable_is_reported(monkeypatch, value, expected):
    monkeypatch.setenv("BARS_PASSWORD", "x")
    monkeypatch.delenv("BARS_PASSWRD", raising=False)
    if value is not None:
        monkeypatch.setenv("BARS_PASSWRD", value)

    message = get_error_message("postgresql://ada:${BARS_PASSWRD}@h/x")

    assert f"needs the environment variable 'BARS_PASSWRD', which {expected}." in message
    assert value is not None or "Did you mean 'BARS_PASSWORD'?" in message


@pytest.mark.slow
def test_password_with_special_characters_authenticates(postgres_server, monkeypatch):
    """pg_hba.conf requires a password from this role; other roles are trusted on the socket."""
    password = "p@ss:w/r d%40${HOME}"
    role = f"r{uuid.uuid4().hex[:8]}"
    execute_sql(
        postgres_server, f"CREATE ROLE {role} LOGIN PASSWORD '{password.replace('%', '%%')}'"
    )
    folder = postgres_server.partition("host=")[2]
    hba_file = Path(folder) / "data" / "pg_hba.conf"
    hba_content = hba_file.read_text()
    try:
        hba_file.write_text(f"local all {role} scram-sha-256\n{hba_content}")
        execute_sql(postgres_server, "SELECT pg_reload_conf()", "SELECT pg_sleep(0.5)")
        url = f"postgresql://{role}:${{BARS_PASSWORD}}@/postgres?host={folder}"
        query = "SELECT DATE '2020-01-02' AS date, 1.5 AS close"
        monkeypatch.setenv("BARS_PASSWORD", password)
        assert read_rows(url, query)["close"].tolist() == [1.5]

        monkeypatch.setenv("BARS_PASSWORD", "wr0ng")
        message = get_error_message(url, query)
    finally:
        hba_file.write_text(hba_content)
        execute_sql(postgres_server, "SELECT pg_reload_conf()")
    assert "password authentication failed" in message
    assert "wr0ng" not in message


@pytest.mark.slow
def test_timestamps_with_time_zone_keep_their_instant(postgres_server):
    query = (
        "SELECT TIMESTAMPTZ '2020-07-01 12:00+02' AS date, 1 AS close"
        " UNION ALL SELECT TIMESTAMPTZ '2020-12-01 12:00+01', 2 ORDER BY 1"
    )

    rows = read_rows(postgres_server, query)

    assert rows.index.tz_convert("UTC").hour.tolist() == [10, 11]
    assert rows.index[0] == dt.datetime(2020, 7, 1, 10, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:s3cret@host/x",
        "postgresql+psycopg://ada:${A}s3cret@host:5432/x",
        "postgresql://ada@host/x?password=s3cret&sslmode=require",
        "mssql+pyodbc:///?odbc_connect=DRIVER%3Dx%3BPWD%3Ds3cret%3BUID%3Dada",
    ],
)
def test_password_in_settings_is_rejected_and_not_shown(url):
    with pytest.raises(SettingsError, match=r"write \$\{NAME\} in its place") as parse_error:
        BarsSettings.parse({"source": {"kind": "sql", "url": url, "query": QUERY}}, where="x.yaml")
    with pytest.raises(SettingsError) as constructor_error:
        SqlSource(url=url, query=QUERY)

    assert "'source.sql.url'" in str(parse_error.value)
    assert "s3cret" not in str(parse_error.value)
    assert "s3cret" not in str(constructor_error.value)


@pytest.mark.parametrize(
    "url",
    [
        "${DATABASE_URL}",
        "postgresql://ada:${PASSWORD}@host/x",
        "postgresql://${USER}:${PASSWORD}@${HOST}:${PORT}/x?sslmode=require",
        "postgresql://ada@host/x",
        "postgresql://host/x?passfile=%2Fetc%2Fpass",
        "mssql+pyodbc:///?odbc_connect=DRIVER%3Dx%3BPWD%3D${PASSWORD}%3BUID%3Dada",
        "sqlite:////data/ada:x@home.db",
        "sqlite:///C:/data/bars.db",
    ],
)
def test_url_without_a_password_is_accepted_unchanged(url):
    assert SqlSource(url=url, query=QUERY).url == url
