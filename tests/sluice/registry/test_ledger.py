"""REG-1: immutable versions with full lineage; one recorded decision per subject."""

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
    decided,
    poc_receipt,
    promote_chain,
    promotion_receipt,
    register_sample,
    sample_lineage,
)
from tests.sluice.registry.one_database import ON_BOTH
from tests.sluice.registry.one_database import url as url

OTHER = "d" * 64


@ON_BOTH
def test_version_comes_back_as_it_was_registered(ledger: Ledger, store: ArtifactStore) -> None:
    lineage = sample_lineage(store)
    receipt = promotion_receipt(lineage.candidate)

    filed = ledger.register(MODEL, lineage, [poc_receipt(), receipt])

    assert filed.created
    assert filed.version == ledger.version(MODEL, 1) == ledger.versions(MODEL)[0]
    assert filed.version.lineage == lineage
    assert filed.version.registered_at > NOW
    assert [r.receipt.digest for r in ledger.receipts(MODEL, 1)] == [
        poc_receipt().digest,
        receipt.digest,
    ]
    assert ledger.models() == [MODEL]


def test_registering_again_makes_no_second_version(ledger: Ledger, store: ArtifactStore) -> None:
    lineage = sample_lineage(store)
    first = ledger.register(MODEL, lineage, [poc_receipt()])
    later = lineage.model_copy(update={"training_seconds": 99.0})

    again = ledger.register(MODEL, later, [poc_receipt(), promotion_receipt(lineage.candidate)])

    assert not again.created
    assert again.version.number == 1
    assert again.version.lineage == first.version.lineage
    assert len(ledger.versions(MODEL)) == 1
    assert len(ledger.receipts(MODEL, 1)) == 2
    assert [entry.action for entry in ledger.history(MODEL)] == ["register", "stage"]


def test_numbers_count_per_model(ledger: Ledger, store: ArtifactStore) -> None:
    numbers = [
        ledger.register(model, sample_lineage(store, salt=salt, model=model), []).version.number
        for model, salt in (("a", 1), ("a", 2), ("b", 1), ("a", 3))
    ]

    assert numbers == [1, 2, 1, 3]


def test_state_follows_evidence_and_pointer(ledger: Ledger, store: ArtifactStore) -> None:
    """REG-1: dev, staging, production; archived once something else is in production."""

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
    yes = promotion_receipt(lineage.candidate)
    no = promotion_receipt(lineage.candidate, outcome="REJECT", window="b" * 64)

    states = []
    for receipts in ([poc_receipt()], [yes], [yes], [no]):
        states.append(ledger.register(MODEL, lineage, receipts, actor="nightly").version.state)

    assert states == ["dev", "staging", "staging", "dev"]
    lines = ledger.history(MODEL)
    assert [line.action for line in lines] == ["register", "stage", "unstage"]
    assert [line.receipt for line in lines] == [None, yes.digest, no.digest]
    assert lines[2].reason == "outcome of the promotion gate: REJECT"
    assert {line.actor for line in lines} == {"nightly"}
    assert all(line.revision is None for line in lines)


def test_receipt_about_another_candidate_stages_nothing(
    ledger: Ledger, store: ArtifactStore
) -> None:
    lineage = sample_lineage(store)
    ledger.register(MODEL, lineage, [promotion_receipt(OTHER)])

    assert ledger.version(MODEL, 1).state == "dev"


def test_the_first_decision_is_final(ledger: Ledger) -> None:
    """STAT: repeating the evaluation until it passes must not work."""
    no = promotion_receipt(OTHER, outcome="INCONCLUSIVE")
    yes = promotion_receipt(OTHER, outcome="PROMOTE")

    assert decided(ledger, no).digest == no.digest
    assert decided(ledger, yes).digest == no.digest

    question = {"candidate": OTHER, "reference": "baseline", "window": WINDOW}
    found = ledger.find_decision(MODEL, **question)
    assert found is not None
    assert found.digest == no.digest
    for role in question:
        assert ledger.find_decision(MODEL, **(question | {role: "e" * 64})) is None
    assert ledger.find_decision("another", **question) is None


def test_the_decision_function_gets_all_earlier_decisions_and_is_called_once(
    ledger: Ledger,
) -> None:
    """STAT-3: the remaining alpha on a window depends on earlier decisions."""
    received = []

    def judge_of(receipt: Receipt) -> DecisionFunction:
        def judge(earlier: Sequence[Receipt]) -> Receipt:
            received.append([each.digest for each in earlier])
            return receipt

        return judge

    first, second = promotion_receipt(OTHER), promotion_receipt("e" * 64, outcome="REJECT")
    decided(ledger, promotion_receipt("f" * 64), model="another")
    for receipt in (first, second, first):
        ledger.decide(MODEL, receipt.subject, judge_of(receipt))

    assert received == [[], [first.digest]]


def test_a_receipt_about_another_decision_is_rejected_and_not_stored(ledger: Ledger) -> None:
    asked, answered = promotion_receipt(OTHER), promotion_receipt("e" * 64)

    other_gate = asked.model_copy(update={"gate": "poc"})
    cases: list[tuple[Receipt, str]] = [
        (answered, "of the promotion gate about another candidate"),
        (poc_receipt(), "of the poc gate about another candidate, reference, window"),
        (other_gate, r"of the poc gate\. "),
    ]
    for wrong, got in cases:
        with pytest.raises(ContractError, match=f"requested decision is required, got .*{got}"):
            ledger.decide(MODEL, asked.subject, lambda _, wrong=wrong: wrong)

    assert ledger.latest_decision(MODEL, candidate=OTHER, window=WINDOW) is None
    assert ledger.latest_decision(MODEL, candidate="e" * 64, window=WINDOW) is None


def test_latest_decision_is_about_any_reference(ledger: Ledger) -> None:
    first = promotion_receipt(OTHER)
    second = promotion_receipt(OTHER, reference="c" * 64, outcome="EQUIVALENT")
    for receipt in (first, second):
        decided(ledger, receipt)

    found = ledger.latest_decision(MODEL, candidate=OTHER, window=WINDOW)

    assert found is not None
    assert found.digest == second.digest
    assert ledger.latest_decision(MODEL, candidate=OTHER, window="e" * 64) is None


def test_newest_receipt_about_a_subject_is_found(ledger: Ledger) -> None:
    """A gate that fails again after it passed has failed, though the receipt is an old one."""
    subject = {"data": DATA, "config": CONFIG}
    bad, good = poc_receipt(passed=False), poc_receipt()
    seen = []
    for receipt in (bad, good, bad):
        ledger.record_receipt(receipt)
        found = ledger.find_receipt("poc", subject)
        assert found is not None
        seen.append(found.passed)

    assert seen == [False, True, False]
    assert ledger.find_receipt("poc", subject | {"data": OTHER}) is None
    assert ledger.find_receipt("poc", {"data": CONFIG, "config": DATA}) is None
    assert ledger.find_receipt("poc", subject | {"window": WINDOW}) is None
    assert ledger.find_receipt("raw_data", subject) is None


def test_decision_can_be_found_as_a_receipt(ledger: Ledger) -> None:
    receipt = decided(ledger, promotion_receipt(OTHER))

    found = ledger.find_receipt("promotion", {"candidate": OTHER})

    assert found is not None
    assert found.digest == receipt.digest


def test_version_is_found_by_its_candidate(ledger: Ledger, store: ArtifactStore) -> None:
    number = register_sample(ledger, store, salt=4)
    candidate = ledger.version(MODEL, number).candidate

    assert ledger.version_of(MODEL, candidate) == ledger.version(MODEL, number)
    assert ledger.version_of(MODEL, OTHER) is None
    assert ledger.version_of("another", candidate) is None


def test_register_rejects_a_second_decision(ledger: Ledger, store: ArtifactStore) -> None:
    lineage = sample_lineage(store)
    decided(ledger, promotion_receipt(lineage.candidate, outcome="REJECT"))

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
        decided(ledger, receipt)


def test_register_refuses_parts_of_another_candidate(ledger: Ledger, store: ArtifactStore) -> None:
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


def test_evidence_keeps_nan(ledger: Ledger, store: ArtifactStore) -> None:
    lineage = sample_lineage(store)
    receipt = promotion_receipt(lineage.candidate)
    ledger.register(MODEL, lineage, [receipt])

    (back,) = ledger.receipts(MODEL, 1)

    assert str(back.receipt.evidence["folds"][1]["low"]) == "nan"
    assert back.receipt.digest == receipt.digest


@ON_BOTH
def test_history_cannot_be_rewritten(url: str, store: ArtifactStore) -> None:
    """REG-2: the audit is append-only, for SQL as well."""
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
def test_failed_registration_leaves_nothing(ledger: Ledger, store: ArtifactStore) -> None:
    """The second receipt is rejected after the version row was written: all is rolled back."""
    lineage = sample_lineage(store)
    decided(ledger, promotion_receipt(lineage.candidate, outcome="REJECT"))
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
            assert ledger.models() == []  # readers do not wait
            register_sample(ledger, store, salt=1)
            timer.join()
            assert time.monotonic() - started >= 0.2
        finally:
            other.close()


def test_production_version_at_a_time(ledger: Ledger, store: ArtifactStore) -> None:
    """REG-2: between any two moves, at a move itself, before the first, and after a rollback."""
    promote_chain(ledger, store, 2)
    ledger.rollback(MODEL, expected=2, actor="bob", reason="errors", store=store)
    moves = [line for line in ledger.history(MODEL) if line.revision is not None]
    instant = timedelta(microseconds=1)

    def there(when: datetime) -> int | None:
        found = ledger.production_at(MODEL, when)
        return None if found is None else found.to_version

    assert [there(move.at) for move in moves] == [1, 2, 1]
    assert [there(move.at - instant) for move in moves] == [None, 1, 2]
    elsewhere = moves[1].at.astimezone(timezone(timedelta(hours=9)))
    assert there(elsewhere) == 2
    found = ledger.production_at(MODEL, moves[2].at + instant)
    assert found is not None
    assert (found.action, found.actor) == ("rollback", "bob")


def test_time_must_be_past_and_have_a_zone(ledger: Ledger, store: ArtifactStore) -> None:
    register_sample(ledger, store, salt=1)

    with pytest.raises(ContractError, match="must have a time zone"):
        ledger.production_at(MODEL, NOW.replace(tzinfo=None))
    with pytest.raises(ContractError, match="is in the future"):
        ledger.production_at(MODEL, NOW + timedelta(days=1))
    with pytest.raises(UnknownVersion, match="no model 'x'"):
        ledger.production_at("x", NOW)


def test_clock_that_goes_back_does_not_reorder_the_past(url: str, store: ArtifactStore) -> None:
    with Ledger.open(url, clock=Clock()) as ledger:
        promote_chain(ledger, store, 2)
    with Ledger.open(url, clock=Clock(NOW - timedelta(days=1))) as ledger:
        done = ledger.rollback(MODEL, expected=2, actor="a", reason="r", store=store)
        moves = [line.at for line in ledger.history(MODEL) if line.revision is not None]

    assert moves == sorted(moves)
    assert done.at == moves[-1]


@ON_BOTH
def test_decisions_run_without_a_lock_and_repeat_after_a_concurrent_one(
    url: str, ledger: Ledger
) -> None:
    """STAT-3: evaluation takes seconds; writers of other models must not wait or miss a line."""
    asked, other = promotion_receipt(OTHER), promotion_receipt("e" * 64)
    received = []

    def slow(earlier: Sequence[Receipt]) -> Receipt:
        received.append(len(earlier))
        if len(received) == 1:
            with Ledger.open(url, clock=Clock()) as another:
                decided(another, other)
        return asked

    assert ledger.decide(MODEL, asked.subject, slow).digest == asked.digest
    assert received == [0, 1]
