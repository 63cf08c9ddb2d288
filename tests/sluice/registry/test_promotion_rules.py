"""REG-2: a version is promoted only under the rules of its verdict."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import GateBlocked
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state import Transition
from tests.sluice.registry.ledger_samples import (
    MODEL,
    Clock,
    InterruptedStore,
    poc_receipt,
    promote_chain,
    promotion_receipt,
    sample_lineage,
)
from tests.sluice.registry.one_database import url as url

NOW, BEFORE = "b" * 64, "a" * 64
REFUSED = "was evaluated under gate, guard or suite settings"


@pytest.fixture
def ledger(url: str) -> Iterator[RolloutLedger]:
    with RolloutLedger.open(url, clock=Clock()) as opened:
        yield opened


def judge_second(ledger: RolloutLedger, store: ArtifactStore) -> None:
    """Version 1 is in production, and version 2 beat it under the current rules."""
    promote_chain(ledger, store, 1)
    lineage = sample_lineage(store, salt=2)
    reference = ledger.version(MODEL, 1).candidate
    judged = promotion_receipt(lineage.candidate, reference=reference, subject={"rules": NOW})
    ledger.register(MODEL, lineage, [poc_receipt(), judged])


def file_yes_under_other_rules(url: str) -> None:
    """Simulates a run of a changed pipeline on a newer window."""
    with RolloutLedger.open(url, clock=Clock()) as another:
        lineage = another.version(MODEL, 2).lineage
        later = promotion_receipt(
            lineage.candidate,
            reference=another.version(MODEL, 1).candidate,
            window="c" * 64,
            subject={"rules": BEFORE},
        )
        another.register(MODEL, lineage, [later])


def promote(ledger: RolloutLedger, store: ArtifactStore, number: int, expected: int | None) -> int:
    done = ledger.promote(
        MODEL, number, expected=expected, actor="job", reason="r", store=store, rules_digest=NOW
    )
    return done.version


def start(ledger: RolloutLedger, rules: str) -> Transition:
    settings = RolloutSettings()
    return ledger.start_rollout(MODEL, 2, settings, actor="job", reason="r", rules_digest=rules)


def hold(ledger: RolloutLedger, begun: Transition) -> None:
    """Let every step of the rollout pass."""
    before = begun.rollout
    held = before.model_copy(
        update={"phase": "awaiting_promotion", "revision": before.revision + 1}
    )
    changed = begun.model_copy(update={"outcome": "advance", "rollout": held})
    ledger.record_transition(before, changed)


@pytest.mark.parametrize(
    ("against_first", "against_second", "is_allowed"),
    [(BEFORE, NOW, False), (NOW, BEFORE, True)],
)
def test_rules_are_compared_with_the_verdict_against_production(
    ledger: RolloutLedger,
    store: ArtifactStore,
    against_first: str,
    against_second: str,
    is_allowed: bool,
) -> None:
    """3 beat 1 under some rules and lost to 2 under others; then 2 was rolled back."""
    promote_chain(ledger, store, 2)
    first, second = (version.candidate for version in ledger.versions(MODEL))
    lineage = sample_lineage(store, salt=3)
    beat, lost = (
        promotion_receipt(
            lineage.candidate, reference=reference, outcome=outcome, subject={"rules": rules}
        )
        for reference, outcome, rules in (
            (first, "PROMOTE", against_first),
            (second, "REJECT", against_second),
        )
    )
    ledger.register(MODEL, lineage, [poc_receipt(), beat, lost])
    ledger.rollback(MODEL, expected=2, actor="bob", reason="errors", store=store)

    if is_allowed:
        ledger.require_promotable(MODEL, 3, rules_digest=NOW)
        assert promote(ledger, store, 3, 1) == 3
        return
    with pytest.raises(GateBlocked, match=REFUSED):
        ledger.require_promotable(MODEL, 3, rules_digest=NOW)
    with pytest.raises(GateBlocked, match=REFUSED):
        promote(ledger, store, 3, 1)
    assert ledger.production_number(MODEL) == 1


def test_version_without_a_verdict_is_rejected_by_the_evidence_check(
    ledger: RolloutLedger, store: ArtifactStore
) -> None:
    ledger.register(MODEL, sample_lineage(store), [poc_receipt()])

    with pytest.raises(GateBlocked, match="receipt of the promotion gate is required"):
        promote(ledger, store, 1, None)


def test_verdict_under_other_rules_stored_while_networks_load_counts(
    url: str, ledger: RolloutLedger, store: ArtifactStore, tmp_path: Path
) -> None:
    """The check is part of the transaction that moves the pointer."""
    judge_second(ledger, store)
    slow = InterruptedStore(tmp_path / "artifacts", lambda: file_yes_under_other_rules(url))

    with pytest.raises(GateBlocked, match=REFUSED):
        promote(ledger, slow, 2, 1)

    assert ledger.production_number(MODEL) == 1
    assert ledger.promote(MODEL, 2, expected=1, actor="ada", reason="r", store=store).moved


def test_rollout_starts_and_ends_under_the_rules_of_its_verdict(
    url: str, ledger: RolloutLedger, store: ArtifactStore, tmp_path: Path
) -> None:
    judge_second(ledger, store)
    with pytest.raises(GateBlocked, match=REFUSED):
        start(ledger, BEFORE)
    hold(ledger, start(ledger, NOW))
    slow = InterruptedStore(tmp_path / "artifacts", lambda: file_yes_under_other_rules(url))

    done = ledger.finish_rollout(MODEL, actor="job", store=slow, rules_digest=NOW)

    assert (done.outcome, done.rollout.phase) == ("roll_back", "rolled_back")
    assert REFUSED in done.reason
    assert ledger.production_number(MODEL) == 1
