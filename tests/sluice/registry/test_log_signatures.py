"""Signatures of the registry's log against attackers who write the database without a key."""

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import GateBlocked, IntegrityError, StorageError
from sluice.registry import append_only, log
from sluice.registry.anchor import registry_identity
from sluice.registry.database import Database
from sluice.registry.keyring import KNOWN_KEYS_FILE
from sluice.registry.ledger import Ledger
from sluice.registry.signing import SigningKey
from sluice.registry.tables import APPEND_ONLY_TABLES, LOGGED_TABLES, log_head, signatures
from sluice.registry.tables import log as log_table
from tests.sluice.registry.ledger_samples import (
    MODEL,
    Clock,
    poc_receipt,
    promote_chain,
    register_sample,
    sample_lineage,
)
from tests.support.sqlite_files import sqlite_file


def make_key(folder: Path, letter: bytes = b"k") -> SigningKey:
    """Create a key file in a folder, in which the key list and anchor will be; return the key."""
    folder.mkdir(exist_ok=True)
    path = folder / "registry.key"
    path.write_bytes(letter * 32)
    path.chmod(0o600)
    return SigningKey.read(path)


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return make_key(tmp_path / "keys")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "r.db"


@pytest.fixture
def signed_url(path: Path, key: SigningKey, store: ArtifactStore) -> str:
    """URL of a registry with versions 1 and 2 promoted in sequence, every change signed."""
    url = f"sqlite:///{path}"
    with Ledger.open(url, clock=Clock(), key=key) as ledger:
        promote_chain(ledger, store, 2)
        assert ledger.verify(None, store=store, key=key) == []
    return url


def attack(path: Path, *statements: str) -> None:
    """Run SQL statements as an attacker: drop the triggers and restore them afterwards."""
    _without_triggers(path, *statements)
    _restore_triggers(path)


def _restore_triggers(path: Path) -> None:
    database = Database.open(f"sqlite:///{path}", create=False)
    with database.write() as connection:
        append_only.restore_triggers(connection)
    database.close()


def _without_triggers(path: Path, *statements: str) -> None:
    with sqlite_file(path) as connection:
        for table in APPEND_ONLY_TABLES:
            for action in ("update", "delete"):
                connection.execute(f"DROP TRIGGER IF EXISTS {table.name}_no_{action}")
        for statement in statements:
            connection.execute(statement)
    connection.close()


def rewrite_log(path: Path) -> None:
    """Change an actor in the history, recompute the log, and remove the signatures."""
    _without_triggers(path, "UPDATE sluice_history SET actor = 'eve' WHERE id = 1")
    database = Database.open(f"sqlite:///{path}", create=False)
    with database.write() as connection:
        for table in (signatures, log_table, log_head):
            connection.execute(sa.delete(table))
        log.create_head(connection)
        rows = [(t, row) for t in LOGGED_TABLES for row in connection.execute(sa.select(t))]
        log.append_existing_rows(connection, rows)
        append_only.restore_triggers(connection)
    database.close()


def forge_candidate(url: str, store: ArtifactStore) -> int:
    """Register a candidate with forged receipts and valid log lines; return its number."""
    with Ledger.open(url, clock=Clock()) as ledger:
        return register_sample(ledger, store, salt=9, reference=ledger.version(MODEL, 2).candidate)


def roll_back_with_key(url: str, store: ArtifactStore, key: SigningKey) -> None:
    with Ledger.open(url, clock=Clock(), key=key) as ledger:
        ledger.rollback(MODEL, expected=2, actor="honest", reason="r", store=store)


def record_receipt(url: str, key: SigningKey) -> None:
    with Ledger.open(url, clock=Clock(), key=key) as ledger:
        ledger.record_receipt(poc_receipt(data="f" * 64))


def list_findings(url: str, store: ArtifactStore, key: SigningKey) -> list[str]:
    with Ledger.open(url, clock=Clock()) as ledger:
        return [f.what for f in ledger.verify(None, store=store, key=key)]


def anchor_file(key: SigningKey) -> Path:
    assert key.path is not None
    (path,) = key.path.parent.glob("registry.key.*.anchor.json")
    return path


@pytest.mark.parametrize("has_anchor", [True, False])
def test_rewritten_log_without_signatures_is_not_signed(
    has_anchor: bool, path: Path, signed_url: str, store: ArtifactStore, key: SigningKey
) -> None:
    rewrite_log(path)
    if not has_anchor:
        anchor_file(key).unlink()

    what = r"contains line \d+ \(.*line \d+ of the database differs" if has_anchor else r"line 1 of"
    with pytest.raises(IntegrityError, match=what):
        roll_back_with_key(signed_url, store, key)
    findings = list_findings(signed_url, store, key)
    assert "the whole log" in findings[-1]
    assert len(findings) == 1 + has_anchor


def test_promotion_does_not_sign_the_lines_of_a_forged_candidate(
    signed_url: str, store: ArtifactStore, key: SigningKey
) -> None:
    with Ledger.open(signed_url, clock=Clock(), key=key) as ledger:
        first = ledger.unsigned_lines()[0].num_lines + 1
    number = forge_candidate(signed_url, store)

    with (
        Ledger.open(signed_url, clock=Clock(), key=key) as ledger,
        pytest.raises(IntegrityError, match=rf"line {first} of the log .* not signed .*registry s"),
    ):
        ledger.promote(MODEL, number, expected=2, actor="honest", reason="r", store=store)
    assert "are not signed with a known key" in list_findings(signed_url, store, key)[0]
    with Ledger.open(signed_url, clock=Clock(), key=key) as ledger:
        assert ledger.production_number(MODEL) == 2
        head, lines = ledger.unsigned_lines()
        assert [line.line for line in lines] == list(range(first, head.num_lines + 1))
        assert f"register {MODEL} version {number}" in " ".join(line.what for line in lines)
        ledger.sign(head, actor="ada")
        ledger.promote(MODEL, number, expected=2, actor="honest", reason="r", store=store)
    assert list_findings(signed_url, store, key) == []
    database = Database.open(signed_url, create=False)
    with database.read() as connection:
        bridges = connection.execute(
            sa.select(signatures.c.actor, signatures.c.since, signatures.c.line).where(
                signatures.c.kind == "bridge"
            )
        ).all()
    database.close()
    assert [tuple(row) for row in bridges] == [("ada", first - 1, head.num_lines)]


def test_lines_added_after_the_review_are_not_signed(
    signed_url: str, store: ArtifactStore, key: SigningKey
) -> None:
    with Ledger.open(signed_url, clock=Clock(), key=key) as ledger:
        shown, _ = ledger.unsigned_lines()
        forge_candidate(signed_url, store)
        with pytest.raises(GateBlocked, match="when you reviewed it"):
            ledger.sign(shown, actor="ada")
        assert ledger.unsigned_lines()[1] != []


def test_removed_signature_in_the_middle_is_reported(
    path: Path, signed_url: str, store: ArtifactStore, key: SigningKey
) -> None:
    with sqlite_file(path) as connection:
        lines = [line for (line,) in connection.execute("SELECT line FROM sluice_signatures")]
    connection.close()
    assert len(lines) == 4
    attack(path, f"DELETE FROM sluice_signatures WHERE line = {lines[1]}")

    assert list_findings(signed_url, store, key) == [
        f"The signature of line {lines[1]} is missing, although the next signature, of line "
        f"{lines[2]}, names it as the previous one."
    ]
    attack(path, f"UPDATE sluice_signatures SET since = {lines[0]} WHERE line = {lines[2]}")
    assert list_findings(signed_url, store, key) == [
        f"The signature of line {lines[2]} was not made with the key that it names."
    ]
    attack(path, f"DELETE FROM sluice_signatures WHERE line = {lines[2]}")
    with pytest.raises(IntegrityError, match=f"signature of line {lines[2]} is missing"):
        roll_back_with_key(signed_url, store, key)


@pytest.mark.parametrize("how", ["old copy", "truncated", "empty"])
def test_database_without_the_anchored_line_is_reported(
    how: str, path: Path, signed_url: str, store: ArtifactStore, key: SigningKey
) -> None:
    with sqlite_file(path) as connection:
        (line, digest) = connection.execute("SELECT lines, digest FROM sluice_log_head").fetchone()
        (before,) = connection.execute(
            "SELECT max(line) FROM sluice_signatures WHERE line < ?", [line]
        ).fetchone()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    if how == "old copy":
        shutil.copy(path, path.with_suffix(".old"))
        roll_back_with_key(signed_url, store, key)
        line += 1
        shutil.copy(path.with_suffix(".old"), path)
        ends = rf"ends with line {line - 1} \({digest[:12]}\)"
    elif how == "truncated":
        attack(
            path,
            f"DELETE FROM sluice_signatures WHERE line > {before}",
            f"DELETE FROM sluice_log WHERE number > {before}",
            "DELETE FROM sluice_history WHERE id = (SELECT max(id) FROM sluice_history)",
            f"UPDATE sluice_log_head SET lines = {before}, digest = "
            f"(SELECT digest FROM sluice_log WHERE number = {before})",
        )
        ends = f"ends with line {before} "
    else:
        path.unlink()
        Ledger.open(signed_url, clock=Clock()).close()
        ends = "ends with line 0 "

    expected = rf"{anchor_file(key)} contains line {line} \(.*the database {ends}"
    with pytest.raises(IntegrityError, match=expected):
        record_receipt(signed_url, key)
    with (
        Ledger.open(signed_url, clock=Clock(), key=key) as ledger,
        pytest.raises(IntegrityError, match=expected),
    ):
        ledger.sign(ledger.unsigned_lines()[0], actor="ada")
    assert any(f"contains line {line} " in what for what in list_findings(signed_url, store, key))


@pytest.mark.parametrize(
    "change",
    [
        *("signed_at = 'x'", "signed_at = '2020-01-01T00:00:00+00:00'", "actor = 'b'"),
        *("kind = x'00'", "since = 'a'", "digest = x'ff'", "signature = 'x'", "line = 'a'"),
    ],
)
def test_edited_signature_is_reported_and_blocks_changes(
    change: str, path: Path, signed_url: str, store: ArtifactStore, key: SigningKey
) -> None:
    with sqlite_file(path) as connection:
        (last,) = connection.execute("SELECT max(line) FROM sluice_signatures").fetchone()
    connection.close()
    attack(path, f"UPDATE sluice_signatures SET {change} WHERE line = {last}")

    with pytest.raises(IntegrityError):
        roll_back_with_key(signed_url, store, key)
    assert list_findings(signed_url, store, key) != []


def test_swapped_lines_are_not_signed(
    path: Path, signed_url: str, store: ArtifactStore, key: SigningKey
) -> None:
    """A change only checks the lines of the last signature; verify checks all lines."""
    with sqlite_file(path) as connection:
        (last,) = connection.execute("SELECT max(since) FROM sluice_signatures").fetchone()
    connection.close()
    number = forge_candidate(signed_url, store)  # several lines under one signature
    with Ledger.open(signed_url, clock=Clock(), key=key) as ledger:
        ledger.sign(ledger.unsigned_lines()[0], actor="ada")
        head = ledger.unsigned_lines()[0].num_lines
    one, other = head - 2, head - 1
    assert number == 3
    assert last < one
    columns = ("entity", "key", "content")
    attack(
        path,
        "CREATE TEMP TABLE kept AS SELECT * FROM sluice_log",
        f"UPDATE sluice_log SET key = 'x' || key WHERE number IN ({one}, {other})",
        *(
            f"UPDATE sluice_log SET {c} = (SELECT {c} FROM kept WHERE number = {a}) "
            f"WHERE number = {b}"
            for c in columns
            for a, b in ((one, other), (other, one))
        ),
    )

    with pytest.raises(IntegrityError, match=f"Line {one} of the log was changed, or does"):
        roll_back_with_key(signed_url, store, key)


def test_edited_line_below_an_older_signature_blocks_moves(
    path: Path, signed_url: str, store: ArtifactStore, key: SigningKey
) -> None:
    """The line and its digest are consistent; only the neighboring lines reveal the edit."""
    with sqlite_file(path) as connection:
        values = connection.execute(
            "SELECT number, entity, key, previous FROM sluice_log WHERE number = 3"
        ).fetchone()
    connection.close()
    line = dict(zip(("number", "entity", "key", "previous"), values, strict=True))
    digest = log.line_digest(**line, content="f" * 64)
    attack(
        path,
        f"UPDATE sluice_log SET content = '{'f' * 64}', digest = '{digest}' WHERE number = 3",
    )

    with pytest.raises(IntegrityError, match=r"does not match line 3|Line 4 of the log"):
        roll_back_with_key(signed_url, store, key)
    with Ledger.open(signed_url, clock=Clock(), key=key) as ledger:
        number = register_sample(
            ledger, store, salt=3, reference=ledger.version(MODEL, 2).candidate
        )
        with pytest.raises(IntegrityError, match=r"does not match line 3|Line 4 of the log"):
            ledger.promote(MODEL, number, expected=2, actor="a", reason="r", store=store)
        assert ledger.production_number(MODEL) == 2


def test_changes_of_concurrent_writers_are_all_signed(
    url: str, store: ArtifactStore, key: SigningKey
) -> None:
    with Ledger.open(url, clock=Clock(), key=key) as ledger:
        register_sample(ledger, store, salt=1)

    def write(number: int) -> None:
        with Ledger.open(url, clock=Clock(), key=key) as ledger:
            for part in range(3):
                ledger.record_receipt(poc_receipt(data=f"{number}{part}" + "f" * 62))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    with Ledger.open(url, clock=Clock(), key=key) as ledger:
        head, lines = ledger.unsigned_lines()
        assert lines == []
        assert ledger.verify(None, store=store, key=key) == []
    assert json.loads(anchor_file(key).read_text())["line"] == head.num_lines


def test_lines_signed_with_an_unknown_key_block_changes(
    tmp_path: Path, signed_url: str, store: ArtifactStore, key: SigningKey
) -> None:
    other = make_key(tmp_path / "eve", b"e")
    with (
        Ledger.open(signed_url, clock=Clock(), key=other) as ledger,
        pytest.raises(IntegrityError, match="line 1 of the log"),
    ):
        register_sample(ledger, store, salt=9)
    forge_candidate(signed_url, store)
    with Ledger.open(signed_url, clock=Clock(), key=other) as ledger:
        ledger.sign(ledger.unsigned_lines()[0], actor="honest")

    with pytest.raises(IntegrityError, match="is not signed by a known key"):
        roll_back_with_key(signed_url, store, key)
    assert "not signed with a known key" in list_findings(signed_url, store, key)[0]


def test_crash_before_the_anchor_is_written_is_recovered(
    signed_url: str, store: ArtifactStore, key: SigningKey
) -> None:
    before = anchor_file(key).read_bytes()
    roll_back_with_key(signed_url, store, key)
    assert anchor_file(key).read_bytes() != before
    assert anchor_file(key).stat().st_mode & 0o777 == 0o600
    anchor_file(key).write_bytes(before)

    assert list_findings(signed_url, store, key) == []
    with Ledger.open(signed_url, clock=Clock(), key=key) as ledger:
        ledger.record_receipt(poc_receipt(data="f" * 64))
        lines = ledger.unsigned_lines()[0].num_lines
    assert json.loads(anchor_file(key).read_text())["line"] == lines
    assert list(anchor_file(key).parent.glob(".*")) == []  # no temporary file remains


def test_change_is_not_made_if_the_anchor_is_not_writable(signed_url: str, key: SigningKey) -> None:
    folder = anchor_file(key).parent
    moved = folder.with_name("moved")
    with Ledger.open(signed_url, clock=Clock(), key=key) as ledger:
        folder.rename(moved)  # root ignores modes, so the folder must be missing
        with pytest.raises(StorageError, match=r"cannot be stored at .*Nothing was changed"):
            ledger.record_receipt(poc_receipt(data="f" * 64))
        moved.rename(folder)
        assert ledger.unsigned_lines()[1] == []
        ledger.record_receipt(poc_receipt(data="f" * 64))


@pytest.mark.slow
def test_unwritable_object_anchor_is_reported_after_the_change(
    tmp_path: Path, path: Path, store: ArtifactStore, key: SigningKey
) -> None:
    """The anchor object is added after the commit, so the change must not be repeated."""
    assert key.path is not None
    key_list, anchor_folder = key.path.with_name(KNOWN_KEYS_FILE), tmp_path / "kept"
    key_list.write_text(f"actors: {{pipeline: 'file:registry.key'}}\nanchor: '{anchor_folder}'\n")
    key_list.chmod(0o600)
    anchor_folder.mkdir()
    url = f"sqlite:///{path}"
    blocking_file = anchor_folder / registry_identity(url)[:16]
    blocking_file.write_text("")
    with Ledger.open(url, clock=Clock(), key=key) as ledger:
        with pytest.raises(StorageError, match=r"made and signed.*not be stored.*Do not repeat"):
            register_sample(ledger, store, salt=1)
        versions = len(ledger.versions(MODEL))
    blocking_file.unlink()
    record_receipt(url, key)  # continues, and stores its line in the anchor
    assert versions == 1
    assert len(list(anchor_folder.rglob("*.json"))) == 1


def test_two_machines_can_share_a_registry_and_a_key(
    tmp_path: Path, signed_url: str, store: ArtifactStore, key: SigningKey
) -> None:
    second = make_key(tmp_path / "second")
    # The anchor of the second machine has no line yet; it trusts lines signed with the key.
    roll_back_with_key(signed_url, store, second)
    record_receipt(signed_url, key)  # the anchor of this machine has an older line
    for machine in (key, second):
        assert list_findings(signed_url, store, machine) == []


@pytest.mark.slow
@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_shared_append_only_anchor_reveals_lost_lines_on_every_machine(
    form: str, tmp_path: Path, path: Path, store: ArtifactStore
) -> None:
    machines = [make_key(tmp_path / "one"), make_key(tmp_path / "two")]
    anchor_folder = tmp_path / "kept"
    for machine in machines:
        assert machine.path is not None
        key_list = machine.path.with_name(KNOWN_KEYS_FILE)
        where = form.format(anchor_folder)
        key_list.write_text(f"actors: {{pipeline: 'file:registry.key'}}\nanchor: {where}\n")
        key_list.chmod(0o600)
    url = f"sqlite:///{path}"
    with Ledger.open(url, clock=Clock(), key=machines[0]) as ledger:
        register_sample(ledger, store, salt=1)
        shutil.copy(path, path.with_suffix(".old"))
        if path.with_name("r.db-wal").exists():
            shutil.copy(path.with_name("r.db-wal"), path.with_suffix(".old-wal"))
        register_sample(ledger, store, salt=2)
    assert list_findings(url, store, machines[1]) == []
    (folder,) = anchor_folder.iterdir()
    anchor_files = sorted(file.name for file in folder.iterdir())
    assert len(anchor_files) == 2

    shutil.copy(path.with_suffix(".old"), path)
    if path.with_suffix(".old-wal").exists():
        shutil.copy(path.with_suffix(".old-wal"), path.with_name("r.db-wal"))
    assert any("contains line" in what for what in list_findings(url, store, machines[1]))
    with (
        Ledger.open(url, clock=Clock(), key=machines[1]) as ledger,
        pytest.raises(IntegrityError, match="but the database ends with line"),
    ):
        register_sample(ledger, store, salt=3)
    assert sorted(file.name for file in folder.iterdir()) == anchor_files


def write_invalid_json(file: Path) -> None:
    file.write_text("{")


def change_line_number(file: Path) -> None:
    file.write_text(file.read_text().replace('"line":', '"line":1'))


def replace_by_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (write_invalid_json, "is not a signed line"),
        (change_line_number, "the signature is not by a known key"),
        (replace_by_folder, "cannot be read"),
    ],
)
def test_damaged_anchor_is_reported_and_blocks_changes(
    damage: Callable[[Path], None],
    what: str,
    signed_url: str,
    store: ArtifactStore,
    key: SigningKey,
) -> None:
    damage(anchor_file(key))

    with pytest.raises(StorageError, match=what):
        roll_back_with_key(signed_url, store, key)
    (finding,) = list_findings(signed_url, store, key)
    assert what in finding


def test_signatures_from_before_schema_6_are_valid(
    signed_url: str, store: ArtifactStore, key: SigningKey, path: Path
) -> None:
    with sqlite_file(path) as connection:
        rows = connection.execute("SELECT line, digest FROM sluice_signatures").fetchall()
    connection.close()
    attack(
        path,
        "UPDATE sluice_signatures SET since = NULL, kind = NULL, actor = NULL",
        *(
            f"UPDATE sluice_signatures SET signature = "
            f"'{key.sign('log head', f'{line} {digest}')}' WHERE line = {line}"
            for line, digest in rows
        ),
    )
    assert list_findings(signed_url, store, key) == []
    roll_back_with_key(signed_url, store, key)
    assert list_findings(signed_url, store, key) == []
    attack(path, f"UPDATE sluice_signatures SET signature = 'x' WHERE line = {rows[0][0]}")
    assert "was not made with the key" in list_findings(signed_url, store, key)[0]


def test_registry_without_a_key_is_not_signed(tmp_path: Path, store: ArtifactStore) -> None:
    url = f"sqlite:///{tmp_path / 'r.db'}"
    with Ledger.open(url, clock=Clock()) as ledger:
        promote_chain(ledger, store, 2)
        ledger.rollback(MODEL, expected=2, actor="a", reason="r", store=store)
        assert ledger.verify(None, store=store) == []
    assert list(tmp_path.glob("*anchor*")) == []


def test_unsigned_lines_show_whole_model_names(
    tmp_path: Path, store: ArtifactStore, key: SigningKey
) -> None:
    name = "a_model_with_a_long_name"
    with Ledger.open(f"sqlite:///{tmp_path / 'r.db'}", clock=Clock()) as ledger:
        ledger.register(name, sample_lineage(store, model=name), [])
    with Ledger.open(f"sqlite:///{tmp_path / 'r.db'}", clock=Clock(), key=key) as ledger:
        descriptions = [line.what for line in ledger.unsigned_lines()[1]]

    assert f"models: name {name}" in descriptions
    assert any(
        text.startswith(f"versions: model {name}, number 1, candidate ") for text in descriptions
    )
