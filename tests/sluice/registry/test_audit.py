"""Audit trail: changes, rejected attempts and their signatures."""

from datetime import timedelta
from pathlib import Path

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import GateBlocked, IntegrityError, SluiceError, UnknownVersion
from sluice.registry import refusals
from sluice.registry.audit import AuditRecord
from sluice.registry.rollouts import RolloutLedger
from sluice.registry.signing import SigningKey
from sluice.rollout import transitions
from sluice.rollout.settings import RolloutSettings
from tests.sluice.registry.ledger_samples import (
    MODEL,
    Clock,
    promote_chain,
    register_sample,
    sample_lineage,
)
from tests.sluice.registry.test_log_signatures import attack
from tests.sluice.registry.test_roles import keys as keys

KEY = SigningKey(b"k" * 32)


def list_refused(ledger: RolloutLedger) -> list[AuditRecord]:
    return [record for record in ledger.audit() if record.outcome == "refused"]


def test_audit_lists_every_change_with_its_signature_state(url: str, store: ArtifactStore) -> None:
    clock = Clock()
    with RolloutLedger.open(url, clock=clock, key=KEY) as ledger:
        promote_chain(ledger, store, 2)
        number = register_sample(
            ledger, store, salt=3, reference=ledger.version(MODEL, 2).candidate
        )
        started = ledger.start_rollout(MODEL, number, RolloutSettings(), actor="ada", reason="go")
        stopped = transitions.abort(started.rollout, now=clock(), actor="bob", reason="no")
        ledger.record_transition(started.rollout, stopped)
        before_rollback = clock.now
        ledger.rollback(MODEL, expected=2, actor="ada", reason="errors", store=store)
    with RolloutLedger.open(url, clock=clock) as ledger:
        ledger.register(MODEL, sample_lineage(store, salt=4), [], actor="eve")
        records = ledger.audit(key=KEY)
        unchecked = ledger.audit()
        later = ledger.audit(since=before_rollback)

    assert [(r.action, r.actor) for r in records if r.to_version == 3 or r.actor == "eve"] == [
        ("register", "pipeline"),
        ("stage", "pipeline"),
        ("rollout start", "ada"),
        ("rollout abort", "bob"),
        ("register", "eve"),
    ]
    assert [r.at for r in records] == sorted(r.at for r in records)
    rollback = records[-2]
    assert (rollback.action, rollback.from_version, rollback.to_version, rollback.reason) == (
        *("rollback", 2, 1),
        "errors",
    )
    assert {r.signature for r in records[:-1]} == {"signed"}
    assert (records[-1].signature, records[-1].key_id) == ("unsigned", None)
    assert {r.signature for r in unchecked[:-1]} == {"not_checked"}
    assert [r.action for r in later] == ["rollback", "register"]


def test_rejected_attempts_are_recorded_without_a_signature(url: str, store: ArtifactStore) -> None:
    with RolloutLedger.open(url, clock=Clock(), key=KEY) as ledger:
        promote_chain(ledger, store, 1)
        ledger.register(MODEL, sample_lineage(store, salt=2), [])
        attempts = (
            lambda: ledger.promote(MODEL, 2, expected=1, actor="ada", reason="please", store=store),
            lambda: ledger.promote(MODEL, 9, expected=1, actor="ada", reason="r", store=store),
            lambda: ledger.promote(MODEL, 2, expected=7, actor="ada", reason="r", store=store),
            lambda: ledger.rollback(MODEL, expected=1, actor="x\0" * 900, reason="r", store=store),
            lambda: ledger.start_rollout(MODEL, 2, RolloutSettings(), actor="a", reason="r"),
            lambda: ledger.finish_rollout("m" * 300, actor="a", store=store),
        )
        for attempt in attempts:
            with pytest.raises(SluiceError):
                attempt()
        refused = list_refused(ledger)
        assert ledger.unsigned_lines()[1] == []
        assert ledger.verify(None, store=store, key=KEY) == []

    assert [(r.action, r.error, r.from_version, r.to_version) for r in refused] == [
        ("promote", "GateBlocked", 1, 2),
        ("promote", "UnknownVersion", 1, 9),
        ("promote", "PromotionConflict", 7, 2),
        ("rollback", "ContractError", 1, None),
        ("rollout", "GateBlocked", None, 2),
        ("rollout", "UnknownVersion", None, None),
    ]
    assert (refused[0].actor, refused[0].reason, refused[0].key_id) == (
        "ada",
        "please",
        KEY.key_id,
    )
    assert "lacks" in str(refused[0].refused_because) or "required" in str(
        refused[0].refused_because
    )
    assert refused[0].signature is None
    assert len(refused[3].actor) == 200


def test_rejected_attempt_with_wrong_actor_or_unsigned_history_is_recorded(
    tmp_path: Path, store: ArtifactStore, keys: dict[str, SigningKey]
) -> None:
    url = f"sqlite:///{tmp_path / 'r.db'}"
    with RolloutLedger.open(url, clock=Clock(), key=keys["pipeline"]) as ledger:
        register_sample(ledger, store, salt=1)
    with RolloutLedger.open(url, clock=Clock()) as ledger:
        register_sample(ledger, store, salt=2)
    with RolloutLedger.open(url, clock=Clock(), key=keys["ada"]) as ledger:
        for actor, error in (("bob", GateBlocked), ("ada", IntegrityError)):
            with pytest.raises(error):
                ledger.promote(MODEL, 1, expected=None, actor=actor, reason="r", store=store)
        head, _ = ledger.unsigned_lines()
        with pytest.raises(GateBlocked, match="'bob' has another key"):
            ledger.sign(head, actor="bob")
        ledger.sign(head, actor="ada")
        records = ledger.audit(key=keys["bob"])

    assert [(r.action, r.actor, r.error) for r in records if r.outcome == "refused"] == [
        ("promote", "bob", "GateBlocked"),
        ("promote", "ada", "IntegrityError"),
        ("sign", "bob", "GateBlocked"),
    ]
    assert [r.signature for r in records if r.action == "register"] == ["signed", "bridged"]
    (bridge,) = [r for r in records if r.action == "sign" and r.outcome == "accepted"]
    assert (bridge.actor, bridge.signature, bridge.line) == ("ada", "bridged", head.num_lines)


def test_audit_marks_unlogged_rows_and_unknown_keys(tmp_path: Path, store: ArtifactStore) -> None:
    url = f"sqlite:///{tmp_path / 'r.db'}"
    with RolloutLedger.open(url, clock=Clock(), key=SigningKey(b"o" * 32)) as ledger:
        promote_chain(ledger, store, 1)
    attack(
        tmp_path / "r.db",
        "INSERT INTO sluice_history (at, model, action, to_version, actor, reason) "
        f"VALUES ('2025-04-01T00:00:00+00:00', '{MODEL}', 'unstage', 1, 'eve', 'r')",
    )
    with RolloutLedger.open(url, clock=Clock()) as ledger:
        records = ledger.audit(key=KEY)

    assert (records[-1].actor, records[-1].signature) == ("eve", "not_logged")
    assert {r.signature for r in records[:-1]} == {"unknown_key"}


def test_recorded_attempts_per_day_are_limited_and_the_last_one_says_so(
    tmp_path: Path, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "MAX_ATTEMPTS_PER_DAY", 3)
    clock = Clock()
    with RolloutLedger.open(f"sqlite:///{tmp_path / 'r.db'}", clock=clock) as ledger:
        for days in (0, 1):
            clock.now += timedelta(days=days)
            for _ in range(5):
                with pytest.raises(UnknownVersion):
                    ledger.promote("m", 1, expected=None, actor="a", reason="r", store=store)
        refused = list_refused(ledger)

    assert len(refused) == 6
    assert ["At most 3 rejected" in str(r.refused_because) for r in refused] == [
        False,
        False,
        True,
    ] * 2
