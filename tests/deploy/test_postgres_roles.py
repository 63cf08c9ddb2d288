"""The database roles of deploy/postgres/roles.sql: a server cannot change production."""

import asyncio
import io
import uuid
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.engine import make_url

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import StorageError
from sluice.registry import tables
from sluice.registry.rollouts import RolloutLedger
from sluice.registry.signing import SigningKey
from sluice.rollout.prediction_agreement import PredictionAgreement
from sluice.rollout.settings import RolloutSettings
from sluice.serving.log import json_log
from sluice.serving.server_spec import ServerSpec, open_server
from sluice.serving.tokens import Tokens
from tests.sluice.registry.ledger_samples import MODEL, Clock, promote_chain, register_sample
from tests.sluice.registry.test_observations import report, sample
from tests.sluice.serving.serving_samples import quick_settings

ROLES = Path(__file__).parents[2] / "deploy" / "postgres" / "roles.sql"
AGREEMENT = PredictionAgreement(difference=1.0, spread=10.0, rows=1000)
KEY = SigningKey(b"k" * 32)
Connect = Callable[[str], str]

pytestmark = pytest.mark.slow


@pytest.fixture
def url_of(postgres_server: str) -> Connect:
    """Create an empty registry with a login for each role; return a function role -> URL."""
    name = f"r{uuid.uuid4().hex[:12]}"
    logins = {role: f"{name}_{role}" for role in ("owner", "promoter", "server")}
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {logins['owner']} LOGIN")
        connection.execute(f"CREATE SCHEMA {name} AUTHORIZATION {logins['owner']}")

    def url_of(role: str) -> str:
        url = make_url(postgres_server).set(username=logins[role])
        options = {"options": f"-csearch_path={name}"}
        return url.update_query_dict(options).render_as_string(hide_password=False)

    RolloutLedger.open(url_of("owner"), clock=Clock()).close()
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"SET search_path = {name}")
        for _ in range(2):  # the script is idempotent
            connection.execute(ROLES.read_text())
        for role in ("promoter", "server"):
            connection.execute(f"CREATE ROLE {logins[role]} LOGIN IN ROLE sluice_{role}")
    return url_of


def refusal_of(url: str, statement: str) -> str:
    """Return why PostgreSQL refuses a statement."""
    with psycopg.connect(url) as connection, pytest.raises(psycopg.Error) as error:
        connection.execute(statement)
    return str(error.value)


ATTACKS = (
    "UPDATE sluice_pointers SET version = 1",
    "INSERT INTO sluice_history (at, model, action, to_version, actor, reason) "
    f"VALUES ('2025-01-01', '{MODEL}', 'promote', 1, 'eve', 'r')",
    "UPDATE sluice_history SET actor = 'eve'",
    "DELETE FROM sluice_signatures",
    "TRUNCATE sluice_log",
    "UPDATE sluice_log_head SET lines = 0",
    "INSERT INTO sluice_receipts VALUES ('d', 'promotion', '{}', '2025-01-01')",
    "DROP TRIGGER sluice_history_append_only ON sluice_history",
    "ALTER TABLE sluice_history DISABLE TRIGGER ALL",
    "CREATE OR REPLACE FUNCTION sluice_append_only() RETURNS trigger LANGUAGE plpgsql AS "
    "'BEGIN RETURN NULL; END'",
    "DROP TABLE sluice_samples",
    "CREATE TABLE sluice_own (a int)",
    "SET ROLE sluice_promoter",
    # The agreement that a rollout uses, a secret before the first one, a change of the first one.
    "INSERT INTO sluice_rollout_notes (rollout, kind, at, payload) "
    "VALUES ('r', 'agreement', '2025-01-01', '{}')",
    "INSERT INTO sluice_rollout_notes (id, rollout, kind, at, payload) "
    "VALUES (-1, 'r', 'secret', '2025-01-01', '{}')",
    "UPDATE sluice_rollout_notes SET payload = '{}'",
    "DELETE FROM sluice_rollout_notes",
    "ALTER TABLE sluice_rollout_notes DISABLE ROW LEVEL SECURITY",
    "DROP POLICY sluice_server_writes ON sluice_rollout_notes",
    "SELECT setval('sluice_rollout_notes_id_seq', 1)",
    "INSERT INTO sluice_signatures (key_id, line, digest, signature, signed_at) "
    "VALUES ('k', 1, 'd', 's', '2025-01-01')",
    "INSERT INTO sluice_rollouts (id, model, version, receipt, settings, started_at) "
    f"VALUES ('r', '{MODEL}', 1, 'd', '{{}}', '2025-01-01')",
    "UPDATE sluice_rollout_heads SET state = '{}'",
    "LOCK TABLE sluice_log_head",
)


def test_server_role_serves_and_reports_and_cannot_change_the_registry(
    url_of: Connect, store: ArtifactStore, tmp_path: Path
) -> None:
    with RolloutLedger.open(url_of("promoter"), clock=Clock(), key=KEY) as ledger:
        promote_chain(ledger, store, 2)
        number = register_sample(
            ledger, store, salt=3, reference=ledger.version(MODEL, 2).candidate
        )
        rollout = ledger.start_rollout(
            MODEL, number, RolloutSettings(), actor="a", reason="r"
        ).rollout
    spec = ServerSpec(
        model=MODEL,
        settings=quick_settings(),
        registry_url=url_of("server"),
        artifacts=tmp_path / "artifacts",
        tokens=Tokens.of(),
    )
    with open_server(spec, clock=Clock(), log=json_log(io.StringIO())) as serving:
        assert serving.reporter is not None
        asyncio.run(serving.reporter.report(is_final=False))
    with RolloutLedger.open(url_of("server"), clock=Clock(), create=False) as ledger:
        seen = ledger.observations
        (server,) = seen.servers(MODEL, since=Clock().now)
        assert server.model == MODEL
        for requests in (1, 4):
            seen.write(report(rollout=rollout, requests=requests, kept=(sample(requests),)))
        assert seen.traffic_counts(rollout).challenger.requests == 4
        assert len(seen.samples(MODEL, max_samples=9)) == 2
        split = ledger.traffic_split(MODEL)
        assert split is not None
        assert split.production == ledger.version(MODEL, 2).candidate
        with pytest.raises(StorageError, match="permission denied"):
            ledger.rollback(MODEL, expected=2, actor="eve", reason="r", store=store)
    for statement in ATTACKS:
        assert any(
            word in refusal_of(url_of("server"), statement)
            for word in ("permission denied", "must be owner", "row-level security")
        ), statement
    with RolloutLedger.open(url_of("owner"), clock=Clock()) as ledger:
        assert ledger.verify(None, store=store, key=KEY) == []
        assert ledger.production_number(MODEL) == 2


def test_promoter_role_promotes_and_cannot_rewrite_history(
    url_of: Connect, store: ArtifactStore
) -> None:
    url = url_of("promoter")
    with RolloutLedger.open(url, clock=Clock(), key=KEY) as ledger:
        promote_chain(ledger, store, 2)
        assert ledger.rollback(MODEL, expected=2, actor="a", reason="r", store=store).version == 1
        assert ledger.verify(None, store=store, key=KEY) == []
    for statement in ATTACKS[2:5] + ATTACKS[7:12]:
        assert any(
            word in refusal_of(url, statement) for word in ("permission denied", "must be owner")
        ), statement
    assert "append-only" in refusal_of(url, "UPDATE sluice_models SET name = 'x'")


def test_server_role_creates_the_first_secret_and_deletes_old_samples(
    url_of: Connect, store: ArtifactStore
) -> None:
    with RolloutLedger.open(url_of("promoter"), clock=Clock(), key=KEY) as ledger:
        promote_chain(ledger, store, 2)
        number = register_sample(
            ledger, store, salt=3, reference=ledger.version(MODEL, 2).candidate
        )
        started_rollout = ledger.start_rollout(
            MODEL, number, RolloutSettings(), actor="a", reason="r", agreement=AGREEMENT
        ).rollout
    with RolloutLedger.open(url_of("server"), clock=Clock(), create=False) as ledger:
        before = ledger.traffic_split(MODEL)
        ledger.ensure_secret(MODEL)
        with_secret = ledger.traffic_split(MODEL)
        ledger.ensure_secret(MODEL)
        assert ledger.traffic_split(MODEL) == with_secret
        assert before is not None
        assert with_secret is not None
        assert (before.secret, len(with_secret.secret)) == ("", 64)
        seen = ledger.observations
        assert seen.agreement(started_rollout.id) == AGREEMENT
        seen.write(report(rollout=started_rollout, kept=(sample(1),)))
        seen.with_retention(days=1e-9).write(report(rollout=started_rollout))
        assert seen.samples(MODEL, max_samples=9) == []
        assert ledger.erase_user(MODEL, "u").kept == 0
    with RolloutLedger.open(url_of("promoter"), clock=Clock()) as ledger:
        assert ledger.traffic_split(MODEL) == with_secret


def test_every_table_is_named_in_the_roles_file() -> None:
    text = ROLES.read_text()
    words = set(text.replace(",", " ").replace("(", " ").split())

    assert {table.name for table in tables.metadata.tables.values()} <= words
