"""Further attacks on signed history, roles and the audit, by somebody who did not write them.

The attackers: who can write the database and has no key; and one person with a key of their own,
whose client is changed as they like.
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
from sluice.registry.keyring import KNOWN_KEYS
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
from tests.sluice.registry.test_log_signatures import attack, findings, key_in
from tests.sluice.registry.test_roles import (
    Modified,
    approve,
    begin,
    list_keys,
    personal_key,
    promote,
    require_two,
)
from tests.sluice.registry.test_roles import keys as keys

DAY = timedelta(days=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "r.db"


@pytest.fixture
def own_url(path: Path) -> str:
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


# A signature of an unknown key hides who made a change


@pytest.mark.slow
def test_signature_by_an_unknown_key_does_not_hide_a_false_name(
    path: Path, own_url: str, store: ArtifactStore, keys: dict[str, SigningKey]
) -> None:
    begin(own_url, store, keys)
    forge_signature(path, line=head_line(path) + 1, kind="bridge", actor="ada", key_id="0" * 16)
    with Modified.open(own_url, clock=Clock(), key=keys["bob"]) as ledger:
        ledger.promote(MODEL, 2, expected=1, actor="ada", reason="r", store=store)

    found = findings(own_url, store, keys["ada"])
    assert any("names 'ada' but is signed with another key" in what for what in found)


def test_forged_bridge_is_not_shown_as_signed(
    path: Path, own_url: str, store: ArtifactStore, keys: dict[str, SigningKey]
) -> None:
    begin(own_url, store, keys)
    forge_signature(path, line=head_line(path), kind="bridge", actor="ada")

    with Ledger.open(own_url, clock=Clock()) as ledger:
        records = ledger.audit(key=keys["bob"])
    (bridge,) = [r for r in records if r.action == "sign"]
    assert (bridge.signature, bridge.key_id) == ("unknown_key", "f" * 16)
    assert {r.signature for r in records if r.action != "sign"} == {"signed"}


def test_forged_signature_does_not_make_signed_lines_look_unsigned(
    path: Path, own_url: str, store: ArtifactStore, keys: dict[str, SigningKey]
) -> None:
    begin(own_url, store, keys)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        lines = [n for (n,) in connection.execute("SELECT number FROM sluice_log")]
    for line in lines:
        forge_signature(path, line=line, kind="change", actor="eve")

    with Ledger.open(own_url, clock=Clock()) as ledger:
        assert {r.signature for r in ledger.audit(key=keys["bob"])} == {"signed"}


# An approval counts once, and where it was given


@pytest.mark.slow
def test_approval_from_before_a_rollback_does_not_bring_the_version_back(
    tmp_path: Path, own_url: str, store: ArtifactStore, keys: dict[str, SigningKey]
) -> None:
    begin(own_url, store, keys)
    require_two(tmp_path)
    approve(own_url, keys["bob"], "bob")
    promote(own_url, store, keys["ada"], "ada")
    with Ledger.open(own_url, clock=Clock(), key=keys["pipeline"]) as ledger:
        ledger.rollback(MODEL, expected=2, actor="pipeline", reason="errors", store=store)

    def back() -> None:
        with Ledger.open(own_url, clock=Clock(NOW + DAY), key=keys["ada"]) as ledger:
            ledger.promote(
                MODEL, 2, expected=1, actor="ada", reason="r", store=store, reinstate=True
            )

    with pytest.raises(GateBlocked, match="approval of an actor other"):
        back()
    approve(own_url, keys["bob"], "bob")
    back()
    assert len(findings(own_url, store, keys["bob"])) == 1  # that of version 1, by ada alone


@pytest.mark.slow
def test_approval_given_in_another_registry_does_not_count(
    tmp_path: Path, store: ArtifactStore, keys: dict[str, SigningKey]
) -> None:
    staging = f"sqlite:///{tmp_path / 'staging.db'}"
    begin(staging, store, keys)
    with Ledger.open(staging, clock=Clock(), key=keys["bob"]) as ledger:
        real = ledger.approve(MODEL, 2, actor="bob", reason="good enough for staging")
        lineage = ledger.version(MODEL, 2).lineage
    url = f"sqlite:///{tmp_path / 'production.db'}"
    with Ledger.open(url, clock=Clock(NOW + DAY), key=keys["pipeline"]) as ledger:
        ledger.record_receipt(poc_receipt(data="e" * 64))  # its history is another one
    begin(url, store, keys)
    require_two(tmp_path)
    with Ledger.open(url, clock=Clock(), key=keys["pipeline"]) as ledger:
        ledger.register(MODEL, lineage, [real])

    with pytest.raises(GateBlocked, match="approval of an actor other"):
        promote(url, store, keys["ada"], "ada")


@pytest.mark.slow
def test_approvals_of_a_retired_key_are_valid_only_before_its_end(
    tmp_path: Path, path: Path, own_url: str, store: ArtifactStore, keys: dict[str, SigningKey]
) -> None:
    """An approval made in a copy with bob's stolen old key is inserted by a key holder."""
    begin(own_url, store, keys)
    since = NOW + DAY
    old_list = (tmp_path / KNOWN_KEYS).read_text()
    half = old_list.split("bob: ")[1].split()[0]
    new_list = [
        old_list.replace(half, personal_key(tmp_path / "bob2.key")[1]).rstrip(),
        f"retired: {{'{half}': {(since + DAY).isoformat()}}}",
    ]
    require_two(tmp_path, since)
    with Ledger.open(own_url, clock=Clock(since), key=keys["bob"]) as ledger:
        ledger.approve(MODEL, 2, actor="bob", reason="reviewed")
        lineage = ledger.version(MODEL, 2).lineage
    with Ledger.open(own_url, clock=Clock(since), key=keys["ada"]) as ledger:
        ledger.promote(MODEL, 2, expected=1, actor="ada", reason="r", store=store)
        ledger.rollback(MODEL, expected=2, actor="ada", reason="r", store=store)
    list_keys(tmp_path, new_list)
    require_two(tmp_path, since)
    assert findings(own_url, store, keys["ada"]) == []

    with Ledger.open(own_url, clock=Clock(since + 2 * DAY), key=keys["ada"]) as ledger:
        ledger.record_receipt(poc_receipt(data="a" * 64))
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"VACUUM INTO '{tmp_path / 'copy.db'}'")
    list_keys(tmp_path, [old_list])
    copy = f"sqlite:///{tmp_path / 'copy.db'}"
    with Ledger.open(copy, clock=Clock(since), key=keys["bob"]) as ledger:
        stolen = ledger.approve(MODEL, 2, actor="bob", reason="stolen")
    list_keys(tmp_path, new_list)
    with Ledger.open(own_url, clock=Clock(since), key=keys["pipeline"]) as ledger:
        ledger.register(MODEL, lineage, [stolen])

    def back() -> None:
        with Ledger.open(own_url, clock=Clock(since), key=keys["ada"]) as ledger:
            ledger.promote(
                MODEL, 2, expected=1, actor="ada", reason="r", store=store, reinstate=True
            )

    require_two(tmp_path, since)
    with pytest.raises(GateBlocked, match="approval of an actor other"):
        back()
    list_keys(tmp_path, new_list)  # ada's own list does not ask for two people
    back()
    require_two(tmp_path, since)
    (found,) = findings(own_url, store, keys["ada"])
    assert "(promote to version 2) was made without the approval" in found


# What was shown is what is signed; what was read is what is moved


@pytest.mark.slow
def test_rows_changed_after_the_review_are_not_signed(
    path: Path, own_url: str, store: ArtifactStore
) -> None:
    """Rows are replaced after the review and before the signature."""
    key = key_in(path.parent / "keys")
    with Ledger.open(own_url, clock=Clock(), key=key) as ledger:
        promote_chain(ledger, store, 1)
    with Ledger.open(own_url, clock=Clock()) as ledger:
        register_sample(ledger, store, salt=2)
        (evil,) = [e.reason for e in ledger.history(MODEL) if e.to_version == 2][:1]
    of_row = "WHERE to_version = 2 AND action = 'register'"
    innocent = f"UPDATE sluice_history SET reason = 'nightly run' {of_row}"
    attack(path, innocent)

    with Ledger.open(own_url, clock=Clock(), key=key) as ledger:
        with pytest.raises(IntegrityError, match="cannot be signed: sluice_history"):
            ledger.unsigned_lines()
        attack(path, innocent.replace("nightly run", evil))
        head, lines = ledger.unsigned_lines()
        ledger.sign(head, actor="ada")
    assert any(evil in line.what for line in lines)
    assert findings(own_url, store, key) == []


def rewrite_up_to(path: Path, last: int) -> None:
    """Change reasons in the history and rewrite the chain up to a line; signatures stay."""
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
    path: Path, own_url: str, store: ArtifactStore
) -> None:
    """The chain breaks between its verification and the change, at rows of no used version."""
    key = key_in(path.parent / "keys")
    with Ledger.open(own_url, clock=Clock(), key=key) as ledger:
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


# Keys that ended, forms that ended, and clocks that are set back


@pytest.mark.slow
def test_stolen_retired_key_signs_nothing_new(
    tmp_path: Path, path: Path, own_url: str, store: ArtifactStore
) -> None:
    old, old_half = personal_key(tmp_path / "old.key")
    with Ledger.open(own_url, clock=Clock(), key=old) as ledger:
        promote_chain(ledger, store, 1)
    new, new_half = personal_key(tmp_path / "new.key")
    end = NOW + DAY
    common = [
        f"actors: {{pipeline: {new_half}, ada: {new_half}}}",
        f"retired: {{'{old_half}': {end.isoformat()}}}",
    ]
    list_keys(tmp_path, common)
    with Ledger.open(own_url, clock=Clock(end + DAY), key=new) as ledger:
        ledger.record_receipt(poc_receipt(data="a" * 64))
    assert findings(own_url, store, new) == []

    (tmp_path / KNOWN_KEYS).unlink()
    list_keys(tmp_path, [f"actors: {{pipeline: {old_half}, ada: {new_half}}}"])  # the thief's own
    with Ledger.open(own_url, clock=Clock(), key=old) as ledger:  # with its clock set back
        number = register_sample(
            ledger, store, salt=2, reference=ledger.version(MODEL, 1).candidate
        )
    list_keys(tmp_path, common)

    assert any("was already retired" in what for what in findings(own_url, store, new))
    with (
        Ledger.open(own_url, clock=Clock(end + 2 * DAY), key=new) as ledger,
        pytest.raises(IntegrityError, match="was already retired"),
    ):
        ledger.promote(MODEL, number, expected=1, actor="ada", reason="r", store=store)
    assert head_line(path) > 0


@pytest.mark.slow
def test_obsolete_signature_form_does_not_bypass_the_actor_check(
    path: Path, own_url: str, store: ArtifactStore, keys: dict[str, SigningKey]
) -> None:
    begin(own_url, store, keys)
    with Modified.open(own_url, clock=Clock(), key=keys["bob"]) as ledger:
        ledger.promote(MODEL, 2, expected=1, actor="ada", reason="r", store=store)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        line, digest = connection.execute("SELECT lines, digest FROM sluice_log_head").fetchone()
    signature = keys["bob"].sign("log head", f"{line} {digest}")
    attack(
        path,
        "UPDATE sluice_signatures SET since = NULL, kind = NULL, actor = NULL, "
        f"signature = '{signature}' WHERE line = {line}",
    )

    assert any("has an older format" in what for what in findings(own_url, store, keys["ada"]))


@pytest.mark.slow
def test_clock_set_back_does_not_bypass_the_second_person(
    tmp_path: Path, own_url: str, store: ArtifactStore, keys: dict[str, SigningKey]
) -> None:
    begin(own_url, store, keys)
    since = NOW + DAY
    with Ledger.open(own_url, clock=Clock(since), key=keys["pipeline"]) as ledger:
        ledger.record_receipt(poc_receipt(data="a" * 64))
    # In another zone, in which it is a day later.
    require_two(tmp_path, since.astimezone(timezone(timedelta(hours=14))))
    promote(own_url, store, keys["ada"], "ada")  # whose clock is a day behind

    (found,) = findings(own_url, store, keys["bob"])
    assert "(promote to version 2) was made without the approval" in found


@pytest.mark.slow
def test_unsigned_promotion_with_a_bridge_is_not_two_persons(
    tmp_path: Path, own_url: str, store: ArtifactStore, keys: dict[str, SigningKey]
) -> None:
    begin(own_url, store, keys)
    require_two(tmp_path, NOW + DAY)
    with Ledger.open(own_url, clock=Clock(NOW + 2 * DAY)) as ledger:
        ledger.promote(MODEL, 2, expected=1, actor="nightly job", reason="r", store=store)
    with Ledger.open(own_url, clock=Clock(NOW + 2 * DAY), key=keys["ada"]) as ledger:
        ledger.sign(ledger.unsigned_lines()[0], actor="ada")

    (found,) = findings(own_url, store, keys["bob"])
    assert "(promote to version 2) was made without the approval" in found


# The anchor outside the database, and messages about it


@pytest.mark.slow
def test_older_line_added_to_the_anchor_does_not_count_as_newest(
    tmp_path: Path, path: Path, own_url: str, store: ArtifactStore
) -> None:
    """An attacker who can only add objects adds an older line and restores that database."""
    key, place = key_in(tmp_path / "keys"), tmp_path / "kept"
    list_keys(tmp_path / "keys", ["actors: {pipeline: 'file:registry.key'}", f"anchor: {place}"])
    with Ledger.open(own_url, clock=Clock(), key=key) as ledger:
        ledger.record_receipt(poc_receipt(data="a" * 64))
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute(f"VACUUM INTO '{tmp_path / 'old.db'}'")
        ledger.record_receipt(poc_receipt(data="b" * 64))
    (folder,) = place.iterdir()
    oldest = min(folder.iterdir())
    for each in tmp_path.glob("r.db*"):
        each.unlink()
    (tmp_path / "old.db").rename(path)
    assert any("contains line" in what for what in findings(own_url, store, key))
    (folder / "999999999999.json").write_bytes(oldest.read_bytes())

    with (
        Ledger.open(own_url, clock=Clock(), key=key) as ledger,
        pytest.raises(IntegrityError, match="999999999999"),
    ):
        ledger.record_receipt(poc_receipt(data="c" * 64))
    assert any("999999999999" in what for what in findings(own_url, store, key))


def test_rejected_attempts_of_one_kind_do_not_hide_another(
    own_url: str, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "MAX_PER_DAY", 3)
    with Ledger.open(own_url, clock=Clock()) as ledger:
        ledger.register(MODEL, sample_lineage(store, salt=1), [])
        for _ in range(5):
            with pytest.raises(UnknownVersion):
                ledger.promote(MODEL, 9, expected=None, actor="eve", reason="r", store=store)
        with pytest.raises(GateBlocked):
            ledger.promote(MODEL, 1, expected=None, actor="eve", reason="real", store=store)
        found = [r for r in ledger.audit() if r.outcome == "refused"]
    assert [r.error for r in found] == ["UnknownVersion"] * 3 + ["GateBlocked"]


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
