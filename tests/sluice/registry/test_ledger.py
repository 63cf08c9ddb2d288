"""Immutable versions with lineage, receipts, final decisions and history (REG-1, REG-2)."""

import sqlite3
import threading
import time
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import sqlalchemy as sa

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import ContractError, StorageError, UnknownVersion
from sluice.base.receipts import Receipt
from sluice.registry.code_paths import CodeAcceptance
from sluice.registry.database import Database
from sluice.registry.evidence import DecisionFunction
from sluice.registry.ledger import Ledger
from sluice.registry.rollouts import RolloutLedger
from sluice.registry.signing import SigningKey
from sluice.registry.tables import APPEND_ONLY_TABLES, refusals
from sluice.rollout.settings import RolloutSettings
from tests.sluice.registry.ledger_samples import (
    CONFIG,
    DATA,
    MODEL,
    NOW,
    WINDOW,
    Clock,
    poc_receipt,
    promote_chain,
    promotion_receipt,
    record_decision,
    register_sample,
    sample_lineage,
)
from tests.sluice.registry.one_database import ON_BOTH
from tests.sluice.registry.one_database import url as url

OTHER = "d" * 64


@ON_BOTH
def test_registered_version_is_read_back_unchanged(ledger: Ledger, store: ArtifactStore) -> None:
    lineage = sample_lineage(store)
    receipt = promotion_receipt(lineage.candidate)

    registered = ledger.register(MODEL, lineage, [poc_receipt(), receipt])

    assert registered.created
    assert registered.version == ledger.version(MODEL, 1) == ledger.versions(MODEL)[0]
    assert registered.version.lineage == lineage
    assert registered.version.registered_at > NOW
    assert [r.receipt.digest for r in ledger.receipts(MODEL, 1)] == [
        poc_receipt().digest,
        receipt.digest,
    ]
    assert ledger.models() == [MODEL]


def test_repeated_registration_creates_no_second_version(
    ledger: Ledger, store: ArtifactStore
) -> None:
    lineage = sample_lineage(store)
    first = ledger.register(MODEL, lineage, [poc_receipt()])
    later = lineage.model_copy(update={"training_seconds": 99.0})

    registered_again = ledger.register(
        MODEL, later, [poc_receipt(), promotion_receipt(lineage.candidate)]
    )

    assert not registered_again.created
    assert registered_again.version.number == 1
    assert registered_again.version.lineage == first.version.lineage
    assert len(ledger.versions(MODEL)) == 1
    assert len(ledger.receipts(MODEL, 1)) == 2
    assert [entry.action for entry in ledger.history(MODEL)] == ["register", "stage"]


def test_version_numbers_are_counted_per_model(ledger: Ledger, store: ArtifactStore) -> None:
    numbers = [
        ledger.register(model, sample_lineage(store, salt=salt, model=model), []).version.number
        for model, salt in (("a", 1), ("a", 2), ("b", 1), ("a", 3))
    ]

    assert numbers == [1, 2, 1, 3]


def test_state_depends_on_receipts_and_production_pointer(
    ledger: Ledger, store: ArtifactStore
) -> None:
    """REG-1: dev, staging, production; archived once another version is in production."""

    def states() -> list[str]:
        return [version.state for version in ledger.versions(MODEL)]

    lineage = sample_lineage(store, salt=1)
    ledger.register(MODEL, lineage, [poc_receipt()])
    assert states() == ["dev"]
    ledger.register(MODEL, lineage, [promotion_receipt(lineage.candidate)])
    assert states() == ["staging"]
    promote_chain(ledger, store, 2)
    assert states() == ["archived", "production"]
    rejected = sample_lineage(store, salt=9)
    ledger.register(MODEL, rejected, [promotion_receipt(rejected.candidate, outcome="REJECT")])
    assert states() == ["archived", "production", "dev"]


def test_every_change_of_state_has_a_history_entry(ledger: Ledger, store: ArtifactStore) -> None:
    """REG-1: dev to staging on evidence, back to dev on newer negative evidence."""
    lineage = sample_lineage(store, salt=1)
    positive = promotion_receipt(lineage.candidate)
    negative = promotion_receipt(lineage.candidate, outcome="REJECT", window="b" * 64)

    states = []
    for receipts in ([poc_receipt()], [positive], [positive], [negative]):
        states.append(ledger.register(MODEL, lineage, receipts, actor="nightly").version.state)

    assert states == ["dev", "staging", "staging", "dev"]
    entries = ledger.history(MODEL)
    assert [line.action for line in entries] == ["register", "stage", "unstage"]
    assert [line.receipt for line in entries] == [None, positive.digest, negative.digest]
    assert entries[2].reason == "outcome of the promotion gate: REJECT"
    assert {line.actor for line in entries} == {"nightly"}
    assert all(line.revision is None for line in entries)


def test_receipt_about_another_candidate_does_not_stage_the_version(
    ledger: Ledger, store: ArtifactStore
) -> None:
    lineage = sample_lineage(store)
    ledger.register(MODEL, lineage, [promotion_receipt(OTHER)])

    assert ledger.version(MODEL, 1).state == "dev"


def test_first_decision_on_a_subject_is_final(ledger: Ledger) -> None:
    """Repeating an evaluation until it passes must be impossible."""
    negative = promotion_receipt(OTHER, outcome="INCONCLUSIVE")
    positive = promotion_receipt(OTHER, outcome="PROMOTE")

    assert record_decision(ledger, negative).digest == negative.digest
    assert record_decision(ledger, positive).digest == negative.digest

    question = {"candidate": OTHER, "reference": "baseline", "window": WINDOW}
    stored_receipt = ledger.find_decision(MODEL, **question)
    assert stored_receipt is not None
    assert stored_receipt.digest == negative.digest
    for role in question:
        assert ledger.find_decision(MODEL, **(question | {role: "e" * 64})) is None
    assert ledger.find_decision("another", **question) is None


def test_decision_function_gets_earlier_decisions_and_is_called_once_per_subject(
    ledger: Ledger,
) -> None:
    """STAT-3: the remaining alpha on a window depends on earlier decisions."""
    received = []

    def make_decision_function(receipt: Receipt) -> DecisionFunction:
        def decide(earlier: Sequence[Receipt]) -> Receipt:
            received.append([each.digest for each in earlier])
            return receipt

        return decide

    first, second = promotion_receipt(OTHER), promotion_receipt("e" * 64, outcome="REJECT")
    record_decision(ledger, promotion_receipt("f" * 64), model="another")
    for receipt in (first, second, first):
        ledger.decide(MODEL, receipt.subject, make_decision_function(receipt))

    assert received == [[], [first.digest]]


def test_receipt_about_another_decision_is_rejected_and_not_stored(ledger: Ledger) -> None:
    proposed, unrelated = promotion_receipt(OTHER), promotion_receipt("e" * 64)

    other_gate = proposed.model_copy(update={"gate": "poc"})
    cases: list[tuple[Receipt, str]] = [
        (unrelated, "of the promotion gate about another candidate"),
        (poc_receipt(), "of the poc gate about another candidate, reference, window"),
        (other_gate, r"of the poc gate\. "),
    ]
    for wrong, got in cases:
        with pytest.raises(ContractError, match=f"requested decision is required, got .*{got}"):
            ledger.decide(MODEL, proposed.subject, lambda _, wrong=wrong: wrong)

    assert ledger.latest_decision(MODEL, candidate=OTHER, window=WINDOW) is None
    assert ledger.latest_decision(MODEL, candidate="e" * 64, window=WINDOW) is None


def test_latest_decision_considers_all_references(ledger: Ledger) -> None:
    first = promotion_receipt(OTHER)
    second = promotion_receipt(OTHER, reference="c" * 64, outcome="EQUIVALENT")
    for receipt in (first, second):
        record_decision(ledger, receipt)

    stored_receipt = ledger.latest_decision(MODEL, candidate=OTHER, window=WINDOW)

    assert stored_receipt is not None
    assert stored_receipt.digest == second.digest
    assert ledger.latest_decision(MODEL, candidate=OTHER, window="e" * 64) is None


def test_latest_receipt_about_a_subject_is_found(ledger: Ledger) -> None:
    """A gate that passed and then failed again has failed, even if its receipt was known before."""
    subject = {"data": DATA, "config": CONFIG}
    bad, good = poc_receipt(passed=False), poc_receipt()
    outcomes = []
    for receipt in (bad, good, bad):
        ledger.record_receipt(receipt)
        stored_receipt = ledger.find_receipt("poc", subject)
        assert stored_receipt is not None
        outcomes.append(stored_receipt.passed)

    assert outcomes == [False, True, False]
    assert ledger.find_receipt("poc", subject | {"data": OTHER}) is None
    assert ledger.find_receipt("poc", {"data": CONFIG, "config": DATA}) is None
    assert ledger.find_receipt("poc", subject | {"window": WINDOW}) is None
    assert ledger.find_receipt("raw_data", subject) is None


def test_decision_can_be_found_as_a_receipt(ledger: Ledger) -> None:
    receipt = record_decision(ledger, promotion_receipt(OTHER))

    stored_receipt = ledger.find_receipt("promotion", {"candidate": OTHER})

    assert stored_receipt is not None
    assert stored_receipt.digest == receipt.digest


def test_version_is_found_by_its_candidate(ledger: Ledger, store: ArtifactStore) -> None:
    number = register_sample(ledger, store, salt=4)
    candidate = ledger.version(MODEL, number).candidate

    assert ledger.version_of(MODEL, candidate) == ledger.version(MODEL, number)
    assert ledger.version_of(MODEL, OTHER) is None
    assert ledger.version_of("another", candidate) is None


def test_register_rejects_a_second_decision(ledger: Ledger, store: ArtifactStore) -> None:
    lineage = sample_lineage(store)
    record_decision(ledger, promotion_receipt(lineage.candidate, outcome="REJECT"))

    with pytest.raises(
        ContractError, match=r"decision on this candidate, window and reference is final"
    ):
        ledger.register(MODEL, lineage, [promotion_receipt(lineage.candidate)])

    assert ledger.versions(MODEL) == []


@pytest.mark.parametrize("role", ["candidate", "reference", "window"])
def test_promotion_receipt_must_have_all_decision_roles(
    ledger: Ledger, store: ArtifactStore, role: str
) -> None:
    lineage = sample_lineage(store)
    receipt = promotion_receipt(lineage.candidate, subject={role: ""})

    with pytest.raises(ContractError, match=f"lacks {role}"):
        ledger.register(MODEL, lineage, [receipt])
    with pytest.raises(ContractError, match=f"lacks {role}"):
        record_decision(ledger, receipt)


def test_register_rejects_lineage_that_does_not_match_candidate_or_model_name(
    ledger: Ledger, store: ArtifactStore
) -> None:
    lineage = sample_lineage(store).model_copy(update={"data": OTHER})

    with pytest.raises(ContractError, match="data, config, code and weights have the digest"):
        ledger.register(MODEL, lineage, [])
    with pytest.raises(ContractError, match="lineage of model 'x' is required"):
        ledger.register("x", sample_lineage(store), [])
    for name in ("", " ", "a\nb", "m" * 201, "../../evil", "a b", "A", "\u202eb", "1a"):
        with pytest.raises(ContractError, match="1 to 200 lower-case letters"):
            ledger.register(name, sample_lineage(store, model=name), [])


def test_unknown_model_or_version_lists_the_known_ones(
    ledger: Ledger, store: ArtifactStore
) -> None:
    register_sample(ledger, store, salt=1)

    with pytest.raises(UnknownVersion, match="Did you mean 'sp500_volatility'"):
        ledger.version("sp500_volatilty", 1)
    with pytest.raises(UnknownVersion, match="has no version 7"):
        ledger.version(MODEL, 7)
    with pytest.raises(UnknownVersion, match="no model 'x'"):
        ledger.verify("x", store=store)
    assert ledger.versions("x") == []
    assert ledger.production("x") is None
    assert ledger.previous_production("x") is None


def test_nan_in_evidence_is_stored(ledger: Ledger, store: ArtifactStore) -> None:
    lineage = sample_lineage(store)
    receipt = promotion_receipt(lineage.candidate)
    ledger.register(MODEL, lineage, [receipt])

    (stored,) = ledger.receipts(MODEL, 1)

    assert str(stored.receipt.evidence["folds"][1]["low"]) == "nan"
    assert stored.receipt.digest == receipt.digest


@ON_BOTH
def test_append_only_tables_reject_updates_and_deletions(url: str, store: ArtifactStore) -> None:
    """REG-2: database triggers reject direct SQL statements, too."""
    with RolloutLedger.open(url, clock=Clock(), key=SigningKey(b"k" * 32)) as ledger:
        promote_chain(ledger, store, 1)
        number = register_sample(
            ledger, store, salt=2, reference=ledger.version(MODEL, 1).candidate
        )
        ledger.start_rollout(MODEL, number, RolloutSettings(), actor="a", reason="r")
        imported = sample_lineage(store, salt=7)
        code = CodeAcceptance(accepted_paths=(), trusted_paths=())
        ledger.import_version(imported, [poc_receipt()], actor="a", reason="r", code=code)
        ledger.register(MODEL, imported, [])
        before = ledger.history(MODEL)
    database = Database.open(url, create=False)
    attempt = {"at": NOW, "model": MODEL, "action": "promote", "actor": "a", "reason": "r"}
    with database.write() as connection:
        connection.execute(
            sa.insert(refusals).values(**attempt, error="GateBlocked", refused_because="r")
        )
    for table in APPEND_ONLY_TABLES:
        column = next(iter(table.c))
        for statement in (sa.update(table).values({column: column}), sa.delete(table)):
            with (
                pytest.raises(StorageError, match="append-only"),
                database.write() as connection,
            ):
                connection.execute(statement)
    database.close()
    with Ledger.open(url, clock=Clock()) as ledger:
        assert ledger.history(MODEL) == before


@ON_BOTH
def test_failed_registration_is_rolled_back_completely(
    ledger: Ledger, store: ArtifactStore
) -> None:
    """The second receipt is rejected after the row of the version was written."""
    lineage = sample_lineage(store)
    record_decision(ledger, promotion_receipt(lineage.candidate, outcome="REJECT"))
    with pytest.raises(ContractError):
        ledger.register(MODEL, lineage, [poc_receipt(), promotion_receipt(lineage.candidate)])

    assert ledger.register(MODEL, lineage, []).version.number == 1
    assert ledger.receipts(MODEL, 1) == []
    assert len(ledger.history(MODEL)) == 1


def test_config_digest_is_part_of_the_candidate(store: ArtifactStore) -> None:
    lineage = sample_lineage(store)

    assert lineage.config == CONFIG
    assert lineage.model_copy(update={"config": OTHER}).compute_candidate() != lineage.candidate


def test_sqlite_is_in_wal_mode_and_waits_for_a_writer(tmp_path: Path, store: ArtifactStore) -> None:
    path = tmp_path / "registry.db"
    with Ledger.open(f"sqlite:///{path}", clock=Clock()) as ledger:
        other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            other.execute("BEGIN IMMEDIATE")
            timer = threading.Timer(0.2, lambda: other.execute("COMMIT"))
            timer.start()
            started = time.monotonic()
            assert ledger.models() == []  # a read does not wait for the writer
            register_sample(ledger, store, salt=1)
            timer.join()
            assert time.monotonic() - started >= 0.2
        finally:
            other.close()


def test_production_at_returns_the_version_of_that_time(
    ledger: Ledger, store: ArtifactStore
) -> None:
    """REG-2: before the first move, at a move, between two moves, and after a rollback."""
    promote_chain(ledger, store, 2)
    ledger.rollback(MODEL, expected=2, actor="bob", reason="errors", store=store)
    moves = [line for line in ledger.history(MODEL) if line.revision is not None]
    instant = timedelta(microseconds=1)

    def production_version_at(when: datetime) -> int | None:
        entry = ledger.production_at(MODEL, when)
        return None if entry is None else entry.to_version

    assert [production_version_at(move.at) for move in moves] == [1, 2, 1]
    assert [production_version_at(move.at - instant) for move in moves] == [None, 1, 2]
    in_other_zone = moves[1].at.astimezone(timezone(timedelta(hours=9)))
    assert production_version_at(in_other_zone) == 2
    entry = ledger.production_at(MODEL, moves[2].at + instant)
    assert entry is not None
    assert (entry.action, entry.actor) == ("rollback", "bob")


def test_production_at_rejects_future_times_and_times_without_zone(
    ledger: Ledger, store: ArtifactStore
) -> None:
    register_sample(ledger, store, salt=1)

    with pytest.raises(ContractError, match="must have a time zone"):
        ledger.production_at(MODEL, NOW.replace(tzinfo=None))
    with pytest.raises(ContractError, match="is in the future"):
        ledger.production_at(MODEL, NOW + timedelta(days=1))
    with pytest.raises(UnknownVersion, match="no model 'x'"):
        ledger.production_at("x", NOW)


def test_clock_set_back_does_not_reorder_the_history(url: str, store: ArtifactStore) -> None:
    with Ledger.open(url, clock=Clock()) as ledger:
        promote_chain(ledger, store, 2)
    with Ledger.open(url, clock=Clock(NOW - timedelta(days=1))) as ledger:
        rollback = ledger.rollback(MODEL, expected=2, actor="a", reason="r", store=store)
        moves = [line.at for line in ledger.history(MODEL) if line.revision is not None]

    assert moves == sorted(moves)
    assert rollback.at == moves[-1]


@ON_BOTH
def test_decision_function_runs_without_lock_and_again_after_a_concurrent_decision(
    url: str, ledger: Ledger
) -> None:
    """STAT-3: an evaluation takes seconds; it must not block writers or miss their decisions."""
    proposed, other = promotion_receipt(OTHER), promotion_receipt("e" * 64)
    received = []

    def decide_slowly(earlier: Sequence[Receipt]) -> Receipt:
        received.append(len(earlier))
        if len(received) == 1:
            with Ledger.open(url, clock=Clock()) as another:
                record_decision(another, other)
        return proposed

    assert ledger.decide(MODEL, proposed.subject, decide_slowly).digest == proposed.digest
    assert received == [0, 1]
