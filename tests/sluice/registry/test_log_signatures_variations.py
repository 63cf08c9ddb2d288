"""Attacks on signed history, roles and the audit, independent of those in other test modules.

There are two attackers: one can write the database and has no key; the other has a personal key
and a modified client.
"""

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from datetime import timedelta, timezone
from pathlib import Path

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import GateBlocked, IntegrityError, UnknownVersion
from sluice.cli.app import build_app
from sluice.registry import refusals
from sluice.registry.database import Database
from sluice.registry.keyring import KNOWN_KEYS_FILE
from sluice.registry.ledger import Ledger
from sluice.registry.log import line_digest, row_digest
from sluice.registry.signing import SigningKey
from sluice.registry.tables import history, log
from tests.sluice.registry.ledger_samples import (
    MODEL,
    NOW,
    Clock,
    InterruptedStore,
    poc_receipt,
    promote_chain,
    register_sample,
    sample_lineage,
)
from tests.sluice.registry.test_log_signatures import attack, list_findings, make_key
from tests.sluice.registry.test_roles import (
    ModifiedClient,
    approve,
    make_personal_key,
    promote,
    promote_and_register,
    require_two_persons,
    write_key_list,
)
from tests.sluice.registry.test_roles import keys as keys

DAY = timedelta(days=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "r.db"


@pytest.fixture
def registry_url(path: Path) -> str:
    return f"sqlite:///{path}"


def head_line(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("SELECT lines FROM sluice_log_head").fetchone()[0])


def forge_signature(
    path: Path, *, line: int, kind: str, actor: str, key_id: str = "f" * 16
) -> None:
    """Add a signature made without a key; adding a row does not require dropping triggers."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "INSERT INTO sluice_signatures (key_id, line, digest, signature, signed_at, since, "
            "kind, actor) VALUES (?, ?, 'd', 'x', ?, 0, ?, ?)",
            [key_id, line, NOW.isoformat(timespec="microseconds"), kind, actor],
        )
        connection.commit()


# Forged signatures with unknown keys


@pytest.mark.slow
def test_signature_by_an_unknown_key_does_not_hide_a_wrong_actor(
    path: Path, registry_url: str, store: ArtifactStore, keys: dict[str, SigningKey]
) -> None:
    promote_and_register(registry_url, store, keys)
    forge_signature(path, line=head_line(path) + 1, kind="bridge", actor="ada", key_id="0" * 16)
    with ModifiedClient.open(registry_url, clock=Clock(), key=keys["bob"]) as ledger:
        ledger.promote(MODEL, 2, expected=1, actor="ada", reason="r", store=store)

    findings = list_findings(registry_url, store, keys["ada"])
    assert any("names 'ada' but is signed with another key" in what for what in findings)


def test_forged_bridge_is_not_shown_as_signed(
    path: Path, registry_url: str, store: ArtifactStore, keys: dict[str, SigningKey]
) -> None:
    promote_and_register(registry_url, store, keys)
    forge_signature(path, line=head_line(path), kind="bridge", actor="ada")

    with Ledger.open(registry_url, clock=Clock()) as ledger:
        records = ledger.audit(key=keys["bob"])
    (bridge,) = [r for r in records if r.action == "sign"]
    assert (bridge.signature, bridge.key_id) == ("unknown_key", "f" * 16)
    assert {r.signature for r in records if r.action != "sign"} == {"signed"}


def test_forged_signature_does_not_make_signed_lines_look_unsigned(
    path: Path, registry_url: str, store: ArtifactStore, keys: dict[str, SigningKey]
) -> None:
    promote_and_register(registry_url, store, keys)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        lines = [n for (n,) in connection.execute("SELECT number FROM sluice_log")]
    for line in lines:
        forge_signature(path, line=line, kind="change", actor="eve")

    with Ledger.open(registry_url, clock=Clock()) as ledger:
        assert {r.signature for r in ledger.audit(key=keys["bob"])} == {"signed"}


# Approvals: valid once, and only in the registry of their creation


@pytest.mark.slow
def test_approval_before_a_rollback_does_not_allow_another_promotion(
    tmp_path: Path, registry_url: str, store: ArtifactStore, keys: dict[str, SigningKey]
) -> None:
    promote_and_register(registry_url, store, keys)
    require_two_persons(tmp_path)
    approve(registry_url, keys["bob"], "bob")
    promote(registry_url, store, keys["ada"], "ada")
    with Ledger.open(registry_url, clock=Clock(), key=keys["pipeline"]) as ledger:
        ledger.rollback(MODEL, expected=2, actor="pipeline", reason="errors", store=store)

    def promote_again() -> None:
        with Ledger.open(registry_url, clock=Clock(NOW + DAY), key=keys["ada"]) as ledger:
            ledger.promote(
                MODEL, 2, expected=1, actor="ada", reason="r", store=store, reinstate=True
            )

    with pytest.raises(GateBlocked, match="approval of an actor other"):
        promote_again()
    approve(registry_url, keys["bob"], "bob")
    promote_again()
    # The finding is about version 1, which ada promoted alone.
    assert len(list_findings(registry_url, store, keys["bob"])) == 1


@pytest.mark.slow
def test_approval_given_in_another_registry_does_not_count(
    tmp_path: Path, store: ArtifactStore, keys: dict[str, SigningKey]
) -> None:
    staging = f"sqlite:///{tmp_path / 'staging.db'}"
    promote_and_register(staging, store, keys)
    with Ledger.open(staging, clock=Clock(), key=keys["bob"]) as ledger:
        approval = ledger.approve(MODEL, 2, actor="bob", reason="good enough for staging")
        lineage = ledger.version(MODEL, 2).lineage
    url = f"sqlite:///{tmp_path / 'production.db'}"
    with Ledger.open(url, clock=Clock(NOW + DAY), key=keys["pipeline"]) as ledger:
        ledger.record_receipt(poc_receipt(data="e" * 64))  # so that the histories differ
    promote_and_register(url, store, keys)
    require_two_persons(tmp_path)
    with Ledger.open(url, clock=Clock(), key=keys["pipeline"]) as ledger:
        ledger.register(MODEL, lineage, [approval])

    with pytest.raises(GateBlocked, match="approval of an actor other"):
        promote(url, store, keys["ada"], "ada")


@pytest.mark.slow
def test_approvals_of_a_retired_key_are_valid_only_before_its_retirement(
    tmp_path: Path, path: Path, registry_url: str, store: ArtifactStore, keys: dict[str, SigningKey]
) -> None:
    """Bob's stolen old key approves in a copy; another key holder inserts that approval."""
    promote_and_register(registry_url, store, keys)
    required_since = NOW + DAY
    old_list = (tmp_path / KNOWN_KEYS_FILE).read_text()
    public_key = old_list.split("bob: ")[1].split()[0]
    new_list = [
        old_list.replace(public_key, make_personal_key(tmp_path / "bob2.key")[1]).rstrip(),
        f"retired: {{'{public_key}': {(required_since + DAY).isoformat()}}}",
    ]
    require_two_persons(tmp_path, required_since)
    with Ledger.open(registry_url, clock=Clock(required_since), key=keys["bob"]) as ledger:
        ledger.approve(MODEL, 2, actor="bob", reason="reviewed")
        lineage = ledger.version(MODEL, 2).lineage
    with Ledger.open(registry_url, clock=Clock(required_since), key=keys["ada"]) as ledger:
        ledger.promote(MODEL, 2, expected=1, actor="ada", reason="r", store=store)
        ledger.rollback(MODEL, expected=2, actor="ada", reason="r", store=store)
    write_key_list(tmp_path, new_list)
    require_two_persons(tmp_path, required_since)
    assert list_findings(registry_url, store, keys["ada"]) == []

    with Ledger.open(
        registry_url, clock=Clock(required_since + 2 * DAY), key=keys["ada"]
    ) as ledger:
        ledger.record_receipt(poc_receipt(data="a" * 64))
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"VACUUM INTO '{tmp_path / 'copy.db'}'")
    write_key_list(tmp_path, [old_list])
    copy = f"sqlite:///{tmp_path / 'copy.db'}"
    with Ledger.open(copy, clock=Clock(required_since), key=keys["bob"]) as ledger:
        forged_approval = ledger.approve(MODEL, 2, actor="bob", reason="stolen")
    write_key_list(tmp_path, new_list)
    with Ledger.open(registry_url, clock=Clock(required_since), key=keys["pipeline"]) as ledger:
        ledger.register(MODEL, lineage, [forged_approval])

    def promote_again() -> None:
        with Ledger.open(registry_url, clock=Clock(required_since), key=keys["ada"]) as ledger:
            ledger.promote(
                MODEL, 2, expected=1, actor="ada", reason="r", store=store, reinstate=True
            )

    require_two_persons(tmp_path, required_since)
    with pytest.raises(GateBlocked, match="approval of an actor other"):
        promote_again()
    write_key_list(tmp_path, new_list)  # the key list of ada does not require two persons
    promote_again()
    require_two_persons(tmp_path, required_since)
    (finding,) = list_findings(registry_url, store, keys["ada"])
    assert "(promote to version 2) was made without the approval" in finding


# Rows that change between review and signature, or between check and move


@pytest.mark.slow
def test_rows_that_do_not_match_their_lines_are_not_signed(
    path: Path, registry_url: str, store: ArtifactStore
) -> None:
    """Rows are replaced for the review and restored before the signature."""
    key = make_key(path.parent / "keys")
    with Ledger.open(registry_url, clock=Clock(), key=key) as ledger:
        promote_chain(ledger, store, 1)
    with Ledger.open(registry_url, clock=Clock()) as ledger:
        register_sample(ledger, store, salt=2)
        (forged_reason,) = [e.reason for e in ledger.history(MODEL) if e.to_version == 2][:1]
    of_row = "WHERE to_version = 2 AND action = 'register'"
    innocent = f"UPDATE sluice_history SET reason = 'nightly run' {of_row}"
    attack(path, innocent)

    with Ledger.open(registry_url, clock=Clock(), key=key) as ledger:
        with pytest.raises(IntegrityError, match="cannot be signed: sluice_history"):
            ledger.unsigned_lines()
        attack(path, innocent.replace("nightly run", forged_reason))
        head, lines = ledger.unsigned_lines()
        ledger.sign(head, actor="ada")
    assert any(forged_reason in line.what for line in lines)
    assert list_findings(registry_url, store, key) == []


def rewrite_up_to(path: Path, last: int) -> None:
    """Change a reason in the history and recompute the log up to a line; keep the signatures."""
    attack(path, "UPDATE sluice_history SET reason = 'forged' WHERE id = 1")
    attack(path, *_rewriting(path, last))


def _rewriting(path: Path, last: int) -> Iterator[str]:
    database = Database.open(f"sqlite:///{path}", create=False)
    with database.read() as connection:
        rows = {("sluice_history", "[1]"): connection.execute(sa.select(history)).first()}
        previous = "0" * 64
        for line in connection.execute(sa.select(log).order_by(log.c.number)).all()[:last]:
            row = rows.get((line.entity, line.key))
            content = line.content if row is None else row_digest(row)
            values = {"number": line.number, "entity": line.entity, "key": line.key}
            digest = line_digest(**values, content=content, previous=previous)
            yield (
                f"UPDATE sluice_log SET content = '{content}', previous = '{previous}', "
                f"digest = '{digest}' WHERE number = {line.number}"
            )
            previous = digest
    database.close()


def test_history_rewritten_while_weights_load_blocks_the_move(
    path: Path, registry_url: str, store: ArtifactStore
) -> None:
    """The log is rewritten between its verification and the change, at unrelated rows."""
    key = make_key(path.parent / "keys")
    with Ledger.open(registry_url, clock=Clock(), key=key) as ledger:
        promote_chain(ledger, store, 1)
        for part in ("a", "b", "c"):
            ledger.record_receipt(poc_receipt(data=part * 64))
        last = head_line(path) - 3
        number = register_sample(
            ledger, store, salt=2, reference=ledger.version(MODEL, 1).candidate
        )
        interrupted = InterruptedStore(store.root, lambda: rewrite_up_to(path, last))
        with pytest.raises(IntegrityError, match="of the log"):
            ledger.promote(MODEL, number, expected=1, actor="a", reason="r", store=interrupted)
        assert ledger.production_number(MODEL) == 1


# Retired keys, older signature formats, and clocks that are set back


@pytest.mark.slow
def test_lines_signed_with_a_stolen_retired_key_are_rejected(
    tmp_path: Path, path: Path, registry_url: str, store: ArtifactStore
) -> None:
    old, old_public = make_personal_key(tmp_path / "old.key")
    with Ledger.open(registry_url, clock=Clock(), key=old) as ledger:
        promote_chain(ledger, store, 1)
    new, new_public = make_personal_key(tmp_path / "new.key")
    end = NOW + DAY
    common = [
        f"actors: {{pipeline: {new_public}, ada: {new_public}}}",
        f"retired: {{'{old_public}': {end.isoformat()}}}",
    ]
    write_key_list(tmp_path, common)
    with Ledger.open(registry_url, clock=Clock(end + DAY), key=new) as ledger:
        ledger.record_receipt(poc_receipt(data="a" * 64))
    assert list_findings(registry_url, store, new) == []

    (tmp_path / KNOWN_KEYS_FILE).unlink()
    # The thief has another key list and sets the clock back.
    write_key_list(tmp_path, [f"actors: {{pipeline: {old_public}, ada: {new_public}}}"])
    with Ledger.open(registry_url, clock=Clock(), key=old) as ledger:
        number = register_sample(
            ledger, store, salt=2, reference=ledger.version(MODEL, 1).candidate
        )
    write_key_list(tmp_path, common)

    assert any("was already retired" in what for what in list_findings(registry_url, store, new))
    with (
        Ledger.open(registry_url, clock=Clock(end + 2 * DAY), key=new) as ledger,
        pytest.raises(IntegrityError, match="was already retired"),
    ):
        ledger.promote(MODEL, number, expected=1, actor="ada", reason="r", store=store)
    assert head_line(path) > 0


@pytest.mark.slow
def test_older_signature_format_does_not_bypass_the_actor_check(
    path: Path, registry_url: str, store: ArtifactStore, keys: dict[str, SigningKey]
) -> None:
    promote_and_register(registry_url, store, keys)
    with ModifiedClient.open(registry_url, clock=Clock(), key=keys["bob"]) as ledger:
        ledger.promote(MODEL, 2, expected=1, actor="ada", reason="r", store=store)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        line, digest = connection.execute("SELECT lines, digest FROM sluice_log_head").fetchone()
    signature = keys["bob"].sign("log head", f"{line} {digest}")
    attack(
        path,
        "UPDATE sluice_signatures SET since = NULL, kind = NULL, actor = NULL, "
        f"signature = '{signature}' WHERE line = {line}",
    )

    assert any(
        "has an older format" in what for what in list_findings(registry_url, store, keys["ada"])
    )


@pytest.mark.slow
def test_clock_set_back_does_not_bypass_the_two_person_rule(
    tmp_path: Path, registry_url: str, store: ArtifactStore, keys: dict[str, SigningKey]
) -> None:
    promote_and_register(registry_url, store, keys)
    required_since = NOW + DAY
    with Ledger.open(registry_url, clock=Clock(required_since), key=keys["pipeline"]) as ledger:
        ledger.record_receipt(poc_receipt(data="a" * 64))
    # In another time zone, in which the date is a day later.
    require_two_persons(tmp_path, required_since.astimezone(timezone(timedelta(hours=14))))
    promote(registry_url, store, keys["ada"], "ada")  # the clock of ada is a day behind

    (finding,) = list_findings(registry_url, store, keys["bob"])
    assert "(promote to version 2) was made without the approval" in finding


@pytest.mark.slow
def test_bridge_over_an_unsigned_promotion_does_not_count_as_a_second_person(
    tmp_path: Path, registry_url: str, store: ArtifactStore, keys: dict[str, SigningKey]
) -> None:
    promote_and_register(registry_url, store, keys)
    require_two_persons(tmp_path, NOW + DAY)
    with Ledger.open(registry_url, clock=Clock(NOW + 2 * DAY)) as ledger:
        ledger.promote(MODEL, 2, expected=1, actor="nightly job", reason="r", store=store)
    with Ledger.open(registry_url, clock=Clock(NOW + 2 * DAY), key=keys["ada"]) as ledger:
        ledger.sign(ledger.unsigned_lines()[0], actor="ada")

    (finding,) = list_findings(registry_url, store, keys["bob"])
    assert "(promote to version 2) was made without the approval" in finding


# The anchor outside the database, and the audit


@pytest.mark.slow
def test_older_line_added_to_the_anchor_under_a_newer_name_is_rejected(
    tmp_path: Path, path: Path, registry_url: str, store: ArtifactStore
) -> None:
    """An attacker who can only add objects adds an older line and restores the old database."""
    key, anchor_folder = make_key(tmp_path / "keys"), tmp_path / "kept"
    write_key_list(
        tmp_path / "keys", ["actors: {pipeline: 'file:registry.key'}", f"anchor: {anchor_folder}"]
    )
    with Ledger.open(registry_url, clock=Clock(), key=key) as ledger:
        ledger.record_receipt(poc_receipt(data="a" * 64))
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute(f"VACUUM INTO '{tmp_path / 'old.db'}'")
        ledger.record_receipt(poc_receipt(data="b" * 64))
    (folder,) = anchor_folder.iterdir()
    oldest = min(folder.iterdir())
    for each in tmp_path.glob("r.db*"):
        each.unlink()
    (tmp_path / "old.db").rename(path)
    assert any("contains line" in what for what in list_findings(registry_url, store, key))
    (folder / "999999999999.json").write_bytes(oldest.read_bytes())

    with (
        Ledger.open(registry_url, clock=Clock(), key=key) as ledger,
        pytest.raises(IntegrityError, match="999999999999"),
    ):
        ledger.record_receipt(poc_receipt(data="c" * 64))
    assert any("999999999999" in what for what in list_findings(registry_url, store, key))


def test_rejected_attempts_of_one_kind_do_not_hide_another(
    registry_url: str, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "MAX_ATTEMPTS_PER_DAY", 3)
    with Ledger.open(registry_url, clock=Clock()) as ledger:
        ledger.register(MODEL, sample_lineage(store, salt=1), [])
        for _ in range(5):
            with pytest.raises(UnknownVersion):
                ledger.promote(MODEL, 9, expected=None, actor="eve", reason="r", store=store)
        with pytest.raises(GateBlocked):
            ledger.promote(MODEL, 1, expected=None, actor="eve", reason="real", store=store)
        rejected = [r for r in ledger.audit() if r.outcome == "refused"]
    assert [r.error for r in rejected] == ["UnknownVersion"] * 3 + ["GateBlocked"]


@pytest.mark.slow
def test_audit_prints_one_line_per_record(
    tmp_path: Path, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    separators = "\u2028\u2029\x85\x1c\x0c\n"
    reason = f'x{separators}{{"outcome":"accepted"}}{separators}\x9b2J\u202e'
    with Ledger.open(f"sqlite:///{tmp_path / 'registry.db'}", clock=Clock()) as ledger:
        ledger.register(MODEL, sample_lineage(store, salt=1), [], reason=reason)

    printed = CliRunner().invoke(build_app(), ["registry", "audit"]).output
    (line,) = printed.splitlines()
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["reason"] == reason
