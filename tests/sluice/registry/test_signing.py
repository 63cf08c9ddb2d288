"""Signed logs: only the key reveals a log that was recomputed completely."""

from pathlib import Path

import pytest
import sqlalchemy as sa

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import IntegrityError, SettingsError
from sluice.registry import append_only, log
from sluice.registry.database import Database
from sluice.registry.ledger import Ledger
from sluice.registry.signing import SigningKey
from sluice.registry.tables import APPEND_ONLY_TABLES, LOGGED_TABLES, log_head, signatures
from tests.sluice.registry.ledger_samples import MODEL, Clock, promote_chain, register_sample

KEY, OTHER = SigningKey(b"k" * 32), SigningKey(b"o" * 32)


def list_findings(ledger: Ledger, store: ArtifactStore, key: SigningKey = KEY) -> list[str]:
    return [f.what for f in ledger.verify(None, store=store, key=key)]


def forge_log(path: Path, *, remove_signatures: bool = False) -> None:
    """Edit a row and recompute the whole log, as an attacker who can write the database."""
    database = Database.open(f"sqlite:///{path}", create=False)
    with database.write() as connection:
        for table in APPEND_ONLY_TABLES:
            for action in ("update", "delete"):
                connection.execute(sa.text(f"DROP TRIGGER {table.name}_no_{action}"))
        connection.execute(sa.text("UPDATE sluice_history SET actor = 'eve' WHERE id = 1"))
        old_signatures = connection.execute(sa.select(signatures)).all()
        connection.execute(sa.delete(signatures))
        connection.execute(sa.delete(log.log))
        connection.execute(sa.delete(log_head))
        log.create_head(connection)
        rows = [(t, row) for t in LOGGED_TABLES for row in connection.execute(sa.select(t))]
        log.append_existing_rows(connection, rows)
        if old_signatures and not remove_signatures:
            connection.execute(sa.insert(signatures), [row._asdict() for row in old_signatures])
        append_only.restore_triggers(connection)
    database.close()


def test_every_change_is_signed_and_verifies_with_the_key(url: str, store: ArtifactStore) -> None:
    with Ledger.open(url, clock=Clock(), key=KEY) as ledger:
        promote_chain(ledger, store, 2)
        ledger.rollback(MODEL, expected=2, actor="a", reason="r", store=store)

        assert list_findings(ledger, store) == []
        (unsigned,) = list_findings(ledger, store, OTHER)
    assert "lines of the log (the whole log) are not signed with a known key" in unsigned


def test_unsigned_lines_are_reported_until_signed(url: str, store: ArtifactStore) -> None:
    with Ledger.open(url, clock=Clock(), key=KEY) as ledger:
        register_sample(ledger, store, salt=1)
    with Ledger.open(url, clock=Clock()) as ledger:
        register_sample(ledger, store, salt=2)
        (unsigned,) = list_findings(ledger, store)
    assert unsigned.startswith("The last 8 lines of the log are not signed with a known key.")
    with Ledger.open(url, clock=Clock(), key=KEY) as ledger:
        head, lines = ledger.unsigned_lines()
        assert len(lines) == 8
        assert ledger.sign(head, actor="ada") == ledger.sign(head, actor="ada") == head
        assert ledger.unsigned_lines() == (head, [])
        assert list_findings(ledger, store) == []


def test_recomputed_log_is_detected_only_with_the_key(tmp_path: Path, store: ArtifactStore) -> None:
    url = f"sqlite:///{tmp_path / 'r.db'}"
    with Ledger.open(url, clock=Clock(), key=KEY) as ledger:
        promote_chain(ledger, store, 1)
    forge_log(tmp_path / "r.db")
    with Ledger.open(url, clock=Clock(), key=KEY) as ledger:
        assert ledger.verify(None, store=store) == []
        assert "Line 11 of the log does not match its signature." in list_findings(ledger, store)
        with pytest.raises(IntegrityError, match="does not match its signature"):
            register_sample(ledger, store, salt=9)
        assert len(ledger.versions(MODEL)) == 1


def test_removed_signatures_are_reported(tmp_path: Path, store: ArtifactStore) -> None:
    url = f"sqlite:///{tmp_path / 'r.db'}"
    with Ledger.open(url, clock=Clock(), key=KEY) as ledger:
        promote_chain(ledger, store, 1)
    forge_log(tmp_path / "r.db", remove_signatures=True)
    with Ledger.open(url, clock=Clock()) as ledger:
        (finding,) = list_findings(ledger, store)

    assert "the whole log" in finding


def test_inconsistent_log_is_not_signed(tmp_path: Path, store: ArtifactStore) -> None:
    url = f"sqlite:///{tmp_path / 'r.db'}"
    with Ledger.open(url, clock=Clock()) as ledger:
        promote_chain(ledger, store, 1)
    database = Database.open(url, create=False)
    with database.write() as connection:
        connection.execute(sa.text("DROP TRIGGER sluice_history_no_update"))
        connection.execute(sa.text("UPDATE sluice_history SET actor = 'eve'"))
    database.close()

    with (
        Ledger.open(url, clock=Clock(), key=KEY) as ledger,
        pytest.raises(IntegrityError, match="is inconsistent and cannot be signed"),
    ):
        ledger.sign(ledger.unsigned_lines()[0], actor="ada")


def test_missing_short_or_readable_key_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with pytest.raises(SettingsError, match=r"cannot be read.*openssl rand"):
        SigningKey.read(path)
    path.write_bytes(b"short")
    path.chmod(0o600)
    with pytest.raises(SettingsError, match="at least 32 bytes"):
        SigningKey.read(path)
    path.write_bytes(b"k" * 32)
    path.chmod(0o644)
    with pytest.raises(SettingsError, match=r"mode 0644\. Run: chmod 600"):
        SigningKey.read(path)
    path.chmod(0o600)

    assert SigningKey.read(path) == KEY
    assert "kkk" not in repr(KEY)
    assert KEY.key_id != OTHER.key_id


def test_signature_for_one_purpose_is_invalid_for_another() -> None:
    assert KEY.sign("log head", "1 x") != KEY.sign("version file", "1 x")
    assert not KEY.verify("\u00e9", "log head", "1 x")
