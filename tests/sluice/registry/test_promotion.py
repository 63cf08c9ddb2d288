"""Promotion requires receipts; rollback follows the history; neither can be forced (REG-2)."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import (
    ContractError,
    GateBlocked,
    IntegrityError,
    PromotionConflict,
    SluiceError,
    UnknownVersion,
)
from sluice.base.receipts import Receipt
from sluice.registry.ledger import Ledger
from sluice.registry.lineage import Lineage
from tests.sluice.registry.ledger_samples import (
    MODEL,
    NOW,
    Clock,
    InterruptedStore,
    artifact_path,
    poc_receipt,
    promote_chain,
    promotion_receipt,
    register_sample,
    sample_lineage,
    search_receipt,
)
from tests.sluice.registry.one_database import ON_BOTH
from tests.sluice.registry.one_database import url as url

OTHER = "d" * 64
AHEAD = NOW + timedelta(hours=2)


def promote(ledger: Ledger, store: ArtifactStore, number: int, expected: int | None) -> None:
    ledger.promote(MODEL, number, expected=expected, actor="ada", reason="better", store=store)


def rollback(ledger: Ledger, store: ArtifactStore, expected: int) -> int:
    done = ledger.rollback(MODEL, expected=expected, actor="bob", reason="errors", store=store)
    return done.version


def production(ledger: Ledger) -> int | None:
    version = ledger.production(MODEL)
    return None if version is None else version.number


@ON_BOTH
def test_promotion_moves_pointer_and_writes_history(ledger: Ledger, store: ArtifactStore) -> None:
    register_sample(ledger, store, salt=1)
    lineage = ledger.version(MODEL, 1).lineage

    done = ledger.promote(MODEL, 1, expected=None, actor="ada", reason="first", store=store)

    assert (done.version, done.previous, done.moved, done.revision) == (1, None, True, 1)
    assert production(ledger) == 1
    entry = ledger.history(MODEL)[-1]
    assert (entry.action, entry.from_version, entry.to_version) == ("promote", None, 1)
    assert (entry.actor, entry.reason, entry.revision) == ("ada", "first", 1)
    assert entry.receipt == promotion_receipt(lineage.candidate).digest
    assert entry.at == done.at
    assert "production is now version 1 (before: nothing)" in done.summary


def test_promoting_the_production_version_changes_nothing(
    ledger: Ledger, store: ArtifactStore
) -> None:
    promote_chain(ledger, store, 1)
    before = ledger.history(MODEL)

    done = ledger.promote(MODEL, 1, expected=None, actor="ada", reason="again", store=store)

    assert not done.moved
    assert "already" in done.summary
    assert ledger.history(MODEL) == before


POC, BAD_POC, OTHER_POC = poc_receipt(), poc_receipt(passed=False), poc_receipt(data=OTHER)


@pytest.mark.parametrize(
    ("poc", "subject", "outcome", "cause"),
    [
        ([], {}, "PROMOTE", "receipt of the poc gate is required and missing"),
        ([BAD_POC], {}, "PROMOTE", "poc gate is fail: POC-5"),
        ([OTHER_POC], {}, "PROMOTE", "poc receipt is about another data"),
        ([POC, BAD_POC], {}, "PROMOTE", "poc gate is fail"),
        ([POC], None, "PROMOTE", "receipt of the promotion gate is required and missing"),
        ([POC], {}, "REJECT", "promotion gate is REJECT"),
        ([POC], {}, "EQUIVALENT", "promotion gate is EQUIVALENT"),
        ([POC], {}, "INCONCLUSIVE", "promotion gate is INCONCLUSIVE"),
        ([POC], {"candidate": OTHER}, "PROMOTE", "promotion receipt is about another candidate"),
        ([POC], {"reference": OTHER}, "PROMOTE", "promotion receipt is about another reference"),
        ([POC], {"data": OTHER}, "PROMOTE", "promotion receipt is about another data"),
        ([POC], {"config": OTHER}, "PROMOTE", "promotion receipt is about another config"),
        ([POC], {"code": OTHER}, "PROMOTE", "promotion receipt is about another code"),
    ],
)
def test_promotion_without_required_receipts_is_blocked(
    ledger: Ledger,
    store: ArtifactStore,
    poc: Sequence[Receipt],
    subject: dict[str, str] | None,
    outcome: str,
    cause: str,
) -> None:
    lineage = sample_lineage(store)
    decisions = []
    if subject is not None:
        decisions = [promotion_receipt(lineage.candidate, outcome=outcome, subject=subject)]
    ledger.register(MODEL, lineage, [*poc, *decisions])

    with pytest.raises(GateBlocked, match=cause):
        promote(ledger, store, 1, None)

    assert production(ledger) is None
    assert all(entry.revision is None for entry in ledger.history(MODEL))


POC_BEFORE_SEARCH = poc_receipt(config=OTHER)


@pytest.mark.parametrize(
    ("receipts", "cause"),
    [
        ([POC_BEFORE_SEARCH], "search gate is required and missing"),
        ([POC_BEFORE_SEARCH, search_receipt(searched=OTHER, found=OTHER)], "about another found"),
        ([POC, search_receipt(searched=OTHER)], "poc receipt is about another config"),
    ],
)
def test_searched_settings_require_receipts_of_search_and_poc_gate(
    ledger: Ledger, store: ArtifactStore, receipts: Sequence[Receipt], cause: str
) -> None:
    lineage = sample_lineage(store).model_copy(update={"num_trials": 20})
    ledger.register(MODEL, lineage, [*receipts, promotion_receipt(lineage.candidate)])

    with pytest.raises(GateBlocked, match=cause):
        promote(ledger, store, 1, None)


def test_search_from_settings_that_passed_the_poc_gate_allows_promotion(
    ledger: Ledger, store: ArtifactStore
) -> None:
    lineage = sample_lineage(store).model_copy(update={"num_trials": 20})
    search = search_receipt(searched=OTHER)
    ledger.register(
        MODEL, lineage, [POC_BEFORE_SEARCH, search, promotion_receipt(lineage.candidate)]
    )

    promote(ledger, store, 1, None)

    assert production(ledger) == 1


def test_receipt_must_be_about_the_current_production_version(
    ledger: Ledger, store: ArtifactStore
) -> None:
    """Beating the baseline does not imply beating the production version."""
    promote_chain(ledger, store, 1)
    register_sample(ledger, store, salt=2)  # compared with the baseline

    with pytest.raises(GateBlocked, match="about another reference"):
        promote(ledger, store, 2, 1)

    serving = ledger.version(MODEL, 1).candidate
    lineage = sample_lineage(store, salt=2)
    ledger.register(MODEL, lineage, [promotion_receipt(lineage.candidate, reference=serving)])
    promote(ledger, store, 2, 1)
    assert production(ledger) == 2


def test_later_verdict_about_another_reference_is_ignored(
    ledger: Ledger, store: ArtifactStore
) -> None:
    """3 beat 1, then lost to 2; 2 was rolled back, so only the verdict against 1 counts."""
    promote_chain(ledger, store, 2)
    first, second = (version.candidate for version in ledger.versions(MODEL))
    lineage = sample_lineage(store, salt=3)
    ledger.register(
        MODEL,
        lineage,
        [
            poc_receipt(),
            promotion_receipt(lineage.candidate, reference=first),
            promotion_receipt(lineage.candidate, reference=second, outcome="REJECT"),
        ],
    )
    with pytest.raises(GateBlocked, match="gate is REJECT"):
        promote(ledger, store, 3, 2)
    rollback(ledger, store, 2)

    promote(ledger, store, 3, 1)

    assert production(ledger) == 3


def test_later_rejection_overrides_an_earlier_promote(ledger: Ledger, store: ArtifactStore) -> None:
    register_sample(ledger, store, salt=1)
    lineage = ledger.version(MODEL, 1).lineage
    later = promotion_receipt(lineage.candidate, window="a" * 64, outcome="REJECT")
    ledger.register(MODEL, lineage, [later])

    with pytest.raises(GateBlocked, match="gate is REJECT"):
        promote(ledger, store, 1, None)


@ON_BOTH
def test_rejection_stored_while_networks_load_counts(
    url: str, ledger: Ledger, store: ArtifactStore, tmp_path: Path
) -> None:
    register_sample(ledger, store, salt=1)
    lineage = ledger.version(MODEL, 1).lineage
    later = promotion_receipt(lineage.candidate, window="a" * 64, outcome="REJECT")

    def register_rejection() -> None:
        with Ledger.open(url, clock=Clock()) as another:
            another.register(MODEL, lineage, [later])

    with pytest.raises(GateBlocked, match="gate is REJECT"):
        promote(ledger, InterruptedStore(tmp_path / "artifacts", register_rejection), 1, None)

    assert production(ledger) is None


def test_repeated_promotion_receipt_does_not_override_a_rejection(
    ledger: Ledger, store: ArtifactStore
) -> None:
    """A run on the old window finds its earlier decision and registers it with the version."""
    test_later_rejection_overrides_an_earlier_promote(ledger, store)
    lineage = ledger.version(MODEL, 1).lineage
    ledger.register(MODEL, lineage, [poc_receipt(), promotion_receipt(lineage.candidate)])

    with pytest.raises(GateBlocked, match="gate is REJECT"):
        promote(ledger, store, 1, None)
    newest = ledger.find_receipt("promotion", {"candidate": lineage.candidate})
    assert newest is not None
    assert newest.outcome == "REJECT"


def test_decision_registered_for_another_model_does_not_count(
    ledger: Ledger, store: ArtifactStore
) -> None:
    """Two pipelines that differ only in name have the same candidates and receipts."""
    test_later_rejection_overrides_an_earlier_promote(ledger, store)
    same_lineage = sample_lineage(store, salt=1, model="other")
    ledger.register("other", same_lineage, [promotion_receipt(same_lineage.candidate)])

    assert ledger.version(MODEL, 1).candidate == same_lineage.candidate
    with pytest.raises(GateBlocked, match="gate is REJECT"):
        promote(ledger, store, 1, None)


def register_receipt(ledger: Ledger, lineage: Lineage, receipt: Receipt) -> None:
    ledger.register(MODEL, lineage, [receipt])


def record_receipt(ledger: Ledger, _: Lineage, receipt: Receipt) -> None:
    ledger.record_receipt(receipt)


@ON_BOTH
@pytest.mark.parametrize("record_again", [register_receipt, record_receipt])
def test_repeated_receipt_becomes_the_latest_of_its_gate(
    ledger: Ledger,
    store: ArtifactStore,
    record_again: Callable[[Ledger, Lineage, Receipt], None],
) -> None:
    """Receipts: fail, pass, the same fail, the same pass. Recording again keeps the digest."""
    lineage = sample_lineage(store)
    ledger.register(MODEL, lineage, [BAD_POC, promotion_receipt(lineage.candidate), POC])
    record_again(ledger, lineage, BAD_POC)
    with pytest.raises(GateBlocked, match="poc gate is fail"):
        promote(ledger, store, 1, None)

    record_again(ledger, lineage, POC)
    lines = [linked.line_number for linked in ledger.receipts(MODEL, 1)]
    register_receipt(ledger, lineage, POC)
    # POC is already the latest receipt, so nothing is recorded.
    assert [linked.line_number for linked in ledger.receipts(MODEL, 1)] == lines

    promote(ledger, store, 1, None)
    assert ledger.verify(MODEL, store=store) == []


def test_poc_receipt_for_other_settings_is_ignored(ledger: Ledger, store: ArtifactStore) -> None:
    """Two searches from different settings find the same settings."""
    lineage = sample_lineage(store).model_copy(update={"num_trials": 20})
    first = search_receipt(searched=OTHER)
    again = first.model_copy(update={"evidence": {"num_trials": 21}})
    ledger.register(
        MODEL, lineage, [POC_BEFORE_SEARCH, first, promotion_receipt(lineage.candidate)]
    )
    ledger.register(
        MODEL, lineage, [poc_receipt(config="b" * 64), search_receipt(searched="b" * 64)]
    )
    ledger.register(MODEL, lineage, [again])

    promote(ledger, store, 1, None)

    assert production(ledger) == 1


def test_incomplete_lineage_is_not_promoted(ledger: Ledger, store: ArtifactStore) -> None:
    """REG-1: metrics and environment are part of a version."""
    full = sample_lineage(store)
    incomplete = full.model_copy(update={"metrics": {}, "training_seconds": float("nan")})
    ledger.register(MODEL, incomplete, [poc_receipt(), promotion_receipt(incomplete.candidate)])

    with pytest.raises(GateBlocked, match=r"lacks: metrics, training_seconds\."):
        promote(ledger, store, 1, None)


@pytest.mark.parametrize("role", ["weights", "event_log"])
@pytest.mark.parametrize("damage", ["missing", "flipped"])
def test_version_with_a_damaged_artifact_is_not_promoted(
    ledger: Ledger, store: ArtifactStore, tmp_path: Path, role: str, damage: str
) -> None:
    """REG-3: every artifact is verified before the pointer moves."""
    register_sample(ledger, store, salt=1)
    member = ledger.version(MODEL, 1).lineage.members[1]
    path = artifact_path(tmp_path / "artifacts", getattr(member, role))
    content = path.read_bytes()
    path.unlink() if damage == "missing" else path.write_bytes(content[:-1] + b"\xff")

    with pytest.raises(IntegrityError, match=f"{role.replace('_', ' ')} of seed 1 fold 0"):
        promote(ledger, store, 1, None)
    assert production(ledger) is None

    path.write_bytes(content)
    promote(ledger, store, 1, None)
    assert production(ledger) == 1


@ON_BOTH
def test_promotion_with_another_expected_production_is_a_conflict(
    ledger: Ledger, store: ArtifactStore
) -> None:
    promote_chain(ledger, store, 2)
    reference = ledger.version(MODEL, 2).candidate
    register_sample(ledger, store, salt=3, reference=reference)

    for expected, message in ((1, "version 1 was expected"), (None, "no version was expected")):
        with pytest.raises(
            PromotionConflict, match=rf"{message}.*version 2 is.*ada promoted .* 20"
        ):
            promote(ledger, store, 3, expected)
    assert production(ledger) == 2


def test_two_rollbacks_go_back_two_versions(ledger: Ledger, store: ArtifactStore) -> None:
    promote_chain(ledger, store, 3)
    previous = ledger.previous_production(MODEL)
    assert previous is not None
    assert previous.number == 2

    assert rollback(ledger, store, 3) == 2
    assert rollback(ledger, store, 2) == 1
    with pytest.raises(UnknownVersion, match="there is no earlier version"):
        rollback(ledger, store, 1)

    assert production(ledger) == 1
    assert ledger.previous_production(MODEL) is None
    entry = ledger.history(MODEL)[-1]
    assert (entry.action, entry.from_version, entry.to_version) == ("rollback", 2, 1)
    assert (entry.actor, entry.reason) == ("bob", "errors")
    assert ledger.verify(MODEL, store=store) == []


def test_rollback_after_a_new_promotion_skips_rolled_back_versions(
    ledger: Ledger, store: ArtifactStore
) -> None:
    """1, 2, rollback to 1, then 3: the rollback target of 3 is 1, not the faulty 2."""
    promote_chain(ledger, store, 2)
    rollback(ledger, store, 2)
    register_sample(ledger, store, salt=3, reference=ledger.version(MODEL, 1).candidate)
    promote(ledger, store, 3, 1)

    assert rollback(ledger, store, 3) == 1


def test_rolled_back_version_requires_reinstate(ledger: Ledger, store: ArtifactStore) -> None:
    """Its receipt against version 1 is still valid, but a sensor must not promote it again."""
    promote_chain(ledger, store, 2)
    rollback(ledger, store, 2)

    with pytest.raises(GateBlocked, match=r"rolled back by bob at 2025-.*\(errors\).*--reinstate"):
        promote(ledger, store, 2, 1)

    ledger.promote(
        MODEL, 2, expected=1, actor="ada", reason="was not it", store=store, reinstate=True
    )
    assert production(ledger) == 2
    assert rollback(ledger, store, 2) == 1


def test_rolled_back_version_can_be_promoted_on_newer_evidence(
    ledger: Ledger, store: ArtifactStore
) -> None:
    promote_chain(ledger, store, 2)
    rollback(ledger, store, 2)
    lineage = ledger.version(MODEL, 2).lineage
    newer = promotion_receipt(
        lineage.candidate, reference=ledger.version(MODEL, 1).candidate, window="b" * 64
    )
    ledger.register(MODEL, lineage, [newer])

    promote(ledger, store, 2, 1)

    assert production(ledger) == 2


def test_fast_clock_at_registration_does_not_bypass_reinstate(
    url: str, store: ArtifactStore
) -> None:
    """The log determines the order: the clock was set back before the rollback."""
    with (
        Ledger.open(url, clock=Clock()) as ledger,
        Ledger.open(url, clock=Clock(AHEAD)) as fast_ledger,
    ):
        promote_chain(ledger, store, 1)
        register_sample(fast_ledger, store, salt=2, reference=ledger.version(MODEL, 1).candidate)
        promote(ledger, store, 2, 1)
        rollback(ledger, store, 2)

        with pytest.raises(GateBlocked, match="rolled back by bob"):
            promote(ledger, store, 2, 1)


def test_fast_clock_at_rollback_does_not_block_newer_evidence(
    url: str, store: ArtifactStore
) -> None:
    with (
        Ledger.open(url, clock=Clock()) as ledger,
        Ledger.open(url, clock=Clock(AHEAD)) as fast_ledger,
    ):
        promote_chain(ledger, store, 2)
        rollback(fast_ledger, store, 2)
        lineage = ledger.version(MODEL, 2).lineage
        reference = ledger.version(MODEL, 1).candidate
        newer = promotion_receipt(lineage.candidate, reference=reference, window="b" * 64)
        ledger.register(MODEL, lineage, [newer])

        promote(ledger, store, 2, 1)

        assert production(ledger) == 2


def test_reinstate_does_not_bypass_the_gate(ledger: Ledger, store: ArtifactStore) -> None:
    lineage = sample_lineage(store)
    ledger.register(MODEL, lineage, [poc_receipt()])

    with pytest.raises(GateBlocked, match="required and missing"):
        ledger.promote(MODEL, 1, expected=None, actor="a", reason="r", store=store, reinstate=True)


def test_rollback_rejects_an_unloadable_version(
    ledger: Ledger, store: ArtifactStore, tmp_path: Path
) -> None:
    promote_chain(ledger, store, 2)
    weights = ledger.version(MODEL, 1).lineage.members[0].weights
    artifact_path(tmp_path / "artifacts", weights).unlink()

    with pytest.raises(IntegrityError, match=r"version 1, weights of seed 0 fold 0.*missing"):
        rollback(ledger, store, 2)

    assert production(ledger) == 2


def test_rollback_with_a_stale_expected_version_is_a_conflict(
    ledger: Ledger, store: ArtifactStore
) -> None:
    """Two operators who both roll back version 3 must not go two versions back."""
    promote_chain(ledger, store, 3)
    rollback(ledger, store, 3)

    with pytest.raises(PromotionConflict, match="bob rolled back to version 2"):
        rollback(ledger, store, 3)


def test_rollback_without_production_is_rejected(ledger: Ledger, store: ArtifactStore) -> None:
    register_sample(ledger, store, salt=1)

    with pytest.raises(SluiceError, match="version 1 was expected in production, but no version"):
        rollback(ledger, store, 1)


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"actor": " "}, "The actor of a change"),
        ({"reason": ""}, "The reason of a change"),
        ({"actor": "\udcff"}, "actor must be text in UTF-8"),
        ({"reason": "a\ud800"}, "reason must be text in UTF-8"),
    ],
)
def test_actor_and_reason_are_required(
    ledger: Ledger, store: ArtifactStore, values: dict[str, str], what: str
) -> None:
    promote_chain(ledger, store, 2)
    arguments = {"actor": "ada", "reason": "why"} | values

    with pytest.raises(ContractError, match=what):
        ledger.promote(
            MODEL, 1, expected=2, store=store, actor=arguments["actor"], reason=arguments["reason"]
        )
    with pytest.raises(ContractError, match=what):
        ledger.rollback(MODEL, expected=2, store=store, **arguments)


def test_conflict_of_a_rollback_advises_no_promotion(ledger: Ledger, store: ArtifactStore) -> None:
    promote_chain(ledger, store, 2)

    with pytest.raises(PromotionConflict) as conflict:
        rollback(ledger, store, 1)
    assert f"sluice registry history {MODEL}" in conflict.value.fix
    assert "promote" not in conflict.value.fix
